"""What a sequence reads: its prompt, and its part of a pass over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...common.errors import ContextTooLong, DraftpickError


def require_prompt(prompt_ids: Sequence[int], context: int) -> None:
    """Raises DraftpickError for an empty prompt, and ContextTooLong for one that does not fit."""
    if not prompt_ids:
        raise DraftpickError("the prompt is empty; give it at least one token")
    if len(prompt_ids) > context:
        raise ContextTooLong(len(prompt_ids), 0, context)


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
