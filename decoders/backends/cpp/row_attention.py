"""Passes over a few tokens of one or several sequences, attention by the kernel of
attention.h.

PyTorch's attention takes one mask for all rows of a batch, as many tokens of each, and as many
positions. The kernel gets what each token sees, so that nothing is gathered, padded or masked
beforehand, and an answer alone takes the very way that it takes among others: a token's bits do
not depend on what is read with it (docs/notes/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..llama.eight_bits import to_store
from ..llama.kv import KVCache
from ..llama.model import (
    POINTWISE,
    LayerWeights,
    PointwiseOps,
    Rope,
    RopeTables,
    after_attention,
    queries_keys_values,
    ropes_at,
)
from ..llama.reading import SequenceSlice
from ..llama.shape import Shape

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


def row_layer(
    h: Tensor,
    w: LayerWeights,
    shape: Shape,
    ropes: Sequence[Rope],
    room: Tensor,
    spans: AttentionSpans,
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """One layer. h: [N, d], and so is what it gives.

    ropes: of each token, as of `Place`.
    room: [B, 2 KV, C, D], the layer's cache.
    pointwise: as of `layer`.
    """
    qkv = queries_keys_values(h, w, shape, ropes, pointwise)  # [H + 2 KV, N, D]
    room[spans.rows, :, spans.slots] = to_store(qkv[shape.heads :].transpose(0, 1), room)
    q = qkv[: shape.heads]
    window, places = shape.kinds[w.kind].window, (spans.rows, spans.begins, spans.bits)
    lows = spans.lows(window) if window else None
    how = shape.attention_scale, shape.score_cap or 0.0
    a = torch.ops.draftpick.attend_rows(q, room, *places, *how, lows, w.sinks)
    return after_attention(h, a, w, shape, pointwise)


class Runs(Protocol):
    """Layers as machine code."""

    def read(self, h: Tensor, first: int, last: int, spans: AttentionSpans) -> Tensor:
        """h [N, d] through the model's layers first..last-1; the rest as of `row_layer`."""


class RowPass:
    """A pass over several rows, by the kernel.

    compiled: for few tokens; None runs an operation after the other.
    """

    def __init__(
        self,
        spans: AttentionSpans,
        shape: Shape,
        rope: RopeTables,
        cache: KVCache,
        compiled: Runs | None = None,
        pointwise: PointwiseOps = POINTWISE,
    ) -> None:
        self._spans, self._shape, self._cache, self._pointwise = spans, shape, cache, pointwise
        self._compiled, self._table = compiled, rope

    def through(self, h: Tensor, layers: Sequence[LayerWeights], first: int = 0) -> Tensor:
        last = first + len(layers)
        if self._compiled is not None:
            return self._compiled.read(h, first, last, self._spans)
        ropes = ropes_at(self._table, self._spans.depths, self._shape)
        rooms = self._cache.all[first:last].unbind(0)
        for w, room in zip(layers, rooms, strict=True):
            h = row_layer(h, w, self._shape, ropes, room, self._spans, self._pointwise)
        return h
