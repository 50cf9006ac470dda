"""What decoding costs on one machine: measured once and stored with a collection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

PLAIN = "autoregressive"  # the arm without drafts, whose rounds speed-ups are over


@dataclass(frozen=True)
class Costs:
    """Seconds, of one target and the arms on it.

    verify_s: at index i, one pass of the target over i + 1 tokens.
    draft_s: by arm, one drafted token; an arm without a drafter is left out.
    at_once: by a number of answers that are written at once, what the same takes for all of them:
        i + 1 tokens, a drafted one, or a round, of each.
    round_s, drawn_round_s: by arm, what a round takes besides its pass and its drafted tokens, at
        temperature 0 and above it: choosing tokens, looking for copies. Empty where unknown.
    """

    verify_s: tuple[float, ...]
    draft_s: dict[str, float]
    at_once: dict[int, Costs] = field(default_factory=dict)
    round_s: dict[str, float] = field(default_factory=dict)
    drawn_round_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Costs:
        """Raises KeyError, TypeError or ValueError where it is no such record."""
        shared = dict(record.get("at_once", {})).items()
        return cls(
            tuple(map(float, record["verify_s"])),
            _by_arm(record["draft_s"]),
            {int(answers): cls.from_json(costs) for answers, costs in shared},
            _by_arm(record.get("round_s", {})),
            _by_arm(record.get("drawn_round_s", {})),
        )

    def of_answers(self, answers: int) -> Costs:
        """Those of a number of concurrent answers; KeyError if they are unknown."""
        return self if answers == 1 else self.at_once[answers]

    def of(self, arms: Collection[str]) -> Costs:
        """The same for these arms alone, and for plain decoding."""

        def kept(seconds: Mapping[str, float]) -> dict[str, float]:
            return {arm: s for arm, s in seconds.items() if arm in arms or arm == PLAIN}

        at_once = {answers: costs.of(arms) for answers, costs in self.at_once.items()}
        rounds = kept(self.round_s), kept(self.drawn_round_s)
        return Costs(self.verify_s, kept(self.draft_s), at_once, *rounds)

    def verify(self, width: float) -> float:
        """Seconds of one target pass over `width` tokens, which need not be whole."""
        from .passes import PassCosts

        return PassCosts(self.verify_s)(width)

    def overhead_s(self, arm: str, temperature: float) -> float:
        """Of `round_s`, or of `drawn_round_s` where tokens are drawn; plain decoding's for an arm
        whose own is unknown."""
        seconds = self.drawn_round_s if temperature > 0 else self.round_s
        return seconds.get(arm, seconds.get(PLAIN, 0.0))


def _by_arm(record: Any) -> dict[str, float]:
    return {str(arm): float(seconds) for arm, seconds in dict(record).items()}
