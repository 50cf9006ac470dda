"""What decoding costs on one machine: measured once and stored with a collection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Costs:
    """Seconds, of one target and the arms on it.

    verify_s: at index i, one pass of the target over i + 1 tokens.
    draft_s: by arm, one drafted token; an arm without a drafter is left out.
    at_once: by a number of answers that are written at once, what the same takes for all of them:
        i + 1 tokens, or a drafted one, of each.
    """

    verify_s: tuple[float, ...]
    draft_s: dict[str, float]
    at_once: dict[int, Costs] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Costs:
        """Raises KeyError, TypeError or ValueError where it is no such record."""
        draft_s = {str(arm): float(seconds) for arm, seconds in dict(record["draft_s"]).items()}
        shared = dict(record.get("at_once", {})).items()
        at_once = {int(answers): cls.from_json(costs) for answers, costs in shared}
        return cls(tuple(map(float, record["verify_s"])), draft_s, at_once)

    def of_answers(self, answers: int) -> Costs:
        """Those where so many answers are written at once; KeyError where they are not known."""
        return self if answers == 1 else self.at_once[answers]

    def of(self, arms: Collection[str]) -> Costs:
        """The same for these arms alone."""
        draft_s = {arm: seconds for arm, seconds in self.draft_s.items() if arm in arms}
        at_once = {answers: costs.of(arms) for answers, costs in self.at_once.items()}
        return Costs(self.verify_s, draft_s, at_once)

    def verify(self, width: float) -> float:
        """Seconds of one target pass over `width` tokens, which need not be whole."""
        from .passes import PassCosts

        return PassCosts(self.verify_s)(width)
