"""Tokens of one or several sequences, as the attention kernel (attention.h) takes them.

PyTorch's attention takes one mask for all rows of a batch, as many tokens of each, and as many
positions. The kernel gets what each token sees, so that nothing is gathered, padded or masked
beforehand, and an answer alone takes the very way that it takes among others: a token's bits do
not depend on what is read with it (docs/notes/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..llama.reading import SequenceSlice

SPAN = 63  # positions of which a token may see some and others not
HEAD = 32  # a head's dimensions are a multiple of it


@dataclass(frozen=True)
class AttentionSpans:
    """Places of a pass's tokens, and at what each of them looks. All int64 [N].

    rows: of the cache.
    slots: positions of it.
    depths: the positions that they are rotated to.
    begins: each sees the positions before its own,
    bits: and of those from there on the i-th where its i-th bit is set.
    """

    rows: Tensor
    slots: Tensor
    depths: Tensor
    begins: Tensor
    bits: Tensor

    def lows(self, window: int) -> Tensor:
        """[N], the first position that each token's window of more than SPAN holds; at most its
        begin, also of a sequence that has ended and looks at one position."""
        if not window:
            return torch.zeros_like(self.slots)
        return torch.minimum((self.depths - window + 1).clamp_min(0), self.begins)

    @classmethod
    def of(cls, readings: Sequence[SequenceSlice]) -> AttentionSpans | None:
        """None where a tree is too large for bits."""
        columns: list[list[int]] = [[], [], [], [], []]
        for reading in readings:
            seen = _chain(reading) if reading.branch is None else _branch(*reading.branch)
            if seen is None:
                return None
            own = [reading.row] * reading.count, range(reading.start, reading.end), *seen
            for column, values in zip(columns, own, strict=True):
                column += values
        return cls(*torch.tensor(columns).unbind(0))


Seen = tuple[Iterable[int], Iterable[int], Iterable[int]]  # depths, begins, bits


def _chain(reading: SequenceSlice) -> Seen:
    nth = [i % SPAN for i in range(reading.count)]  # in parts, if it is long
    depths = range(reading.start, reading.end)
    return depths, [at - n for at, n in zip(depths, nth, strict=True)], [(2 << n) - 1 for n in nth]


def _branch(depths: Tensor, seen: Tensor) -> Seen | None:
    """depths: [T]. seen: bool [T, S + T]."""
    begin = int(seen[:, : len(seen[0]) - len(seen)].all(0).cumprod(0).sum())
    own = seen[:, begin:]
    if own.shape[1] > SPAN:
        return None
    bits = (own * (1 << torch.arange(own.shape[1]))).sum(1)
    return depths.tolist(), [begin] * len(depths), bits.tolist()
