"""What decoding costs on one machine: measured once and stored with a collection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Costs:
    """Seconds at batch 1, of one target and the arms on it.

    verify_s: at index i, one pass of the target over i + 1 tokens.
    draft_s: by arm, one drafted token; an arm without a drafter is left out.
    """

    verify_s: tuple[float, ...]
    draft_s: dict[str, float]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Costs:
        """Raises KeyError, TypeError or ValueError where it is no such record."""
        draft_s = {str(arm): float(seconds) for arm, seconds in dict(record["draft_s"]).items()}
        return cls(tuple(map(float, record["verify_s"])), draft_s)

    def of(self, arms: Collection[str]) -> Costs:
        """The same for these arms alone."""
        draft_s = {arm: seconds for arm, seconds in self.draft_s.items() if arm in arms}
        return Costs(self.verify_s, draft_s)

    def verify(self, width: float) -> float:
        """Seconds of one target pass over `width` tokens, which need not be whole."""
        from .passes import PassCosts

        return PassCosts(self.verify_s)(width)
