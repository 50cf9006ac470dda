"""What one sequence of several reads in a pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SequenceSlice:
    """What one sequence reads.

    row: its own of the cache.
    start: positions that it holds.
    count: tokens that it reads, T.
    depths: [T] the positions that they are rotated to; None for a chain.
    seen: bool [T, start + T], at what each of them looks; None likewise.
    """

    row: int
    start: int
    count: int
    depths: Tensor | None = None
    seen: Tensor | None = None

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def branch(self) -> tuple[Tensor, Tensor] | None:
        """depths and seen; None for a chain."""
        return None if self.depths is None or self.seen is None else (self.depths, self.seen)
