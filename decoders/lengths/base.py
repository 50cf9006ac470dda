"""The seam that decides how many tokens to draft."""

from __future__ import annotations

from typing import Protocol

from ..records import StepStats


class DraftLength(Protocol):
    """min_confidence: a drafter stops before a token less probable than this; 0 never does."""

    min_confidence: float

    def next(self) -> int:
        """How many tokens to draft in the coming round, at most."""
        ...

    def observe(self, stats: StepStats) -> None:
        """What the round gave."""
        ...

    def reset(self) -> None:
        """A new query begins."""
        ...
