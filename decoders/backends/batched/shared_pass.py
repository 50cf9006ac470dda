"""One pass over some tokens of each of several sequences, a chain or a tree in each.

What multiplies by weights takes all tokens at once, so that the weights are read once for all
sequences; attention takes neighbouring rows of the cache together. Sequences may differ in how
many tokens they read and in how many they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..llama.attention import attend, attention_masks, rounded
from ..llama.eight_bits import to_read, to_store
from ..llama.kv import KVCache
from ..llama.model import (
    LayerWeights,
    PointwiseOps,
    RopeTables,
    after_attention,
    queries_keys_values,
    ropes_at,
)
from ..llama.reading import SequenceSlice
from ..llama.shape import Shape

NEIGHBOURS = 8  # rows whose attention is computed at once


@dataclass(frozen=True)
class Group:
    """Neighbouring rows.

    rows: of the cache, those in between that read nothing included.
    read: positions.
    tokens: [B, T] which token of the pass each place is; what has none repeats another.
    masks: as `attention_masks` makes them.
    taken: [n] the places, of B * T, that are tokens.
    """

    rows: slice
    read: int
    tokens: Tensor
    masks: list[Tensor]
    taken: Tensor


class SharedPass:
    """The facts of one pass that all layers need.

    readings: at least two, by growing row.
    pointwise: as of `layer`.
    """

    def __init__(
        self,
        readings: Sequence[SequenceSlice],
        shape: Shape,
        rope: RopeTables,
        cache: KVCache,
        pointwise: PointwiseOps,
    ) -> None:
        self._shape, self._cache, self._pointwise = shape, cache, pointwise
        device, dtype = rope[0][0].device, rope[0][0].dtype
        rows = [r.row for r in readings for _ in range(r.count)]
        slots = [at for r in readings for at in range(r.start, r.end)]
        self._rows = torch.tensor(rows, device=device)  # [N], of each token
        self._slots = torch.tensor(slots, device=device)  # [N], where it is kept
        turned = self._slots
        if any(r.depths is not None for r in readings):
            parts = torch.split(self._slots, [r.count for r in readings])
            pairs = zip(readings, parts, strict=True)
            turned = torch.cat([p if r.depths is None else r.depths for r, p in pairs])
        self._ropes = ropes_at(rope, turned, shape)
        self._groups, first = list[Group](), 0
        for each in _neighbours(readings):
            self._groups.append(_group(each, first, shape, dtype, device))
            first += sum(r.count for r in each)

    def through(self, h: Tensor, layers: Sequence[LayerWeights], first: int) -> Tensor:
        """h [N, d], the readings' tokens one after the other, through `layers`, the first of which
        is the model's layer `first`; [N, d]."""
        shape, heads, kv = self._shape, self._shape.heads, self._shape.kv_heads
        rooms = self._cache.all[first : first + len(layers)].unbind(0)
        for w, room in zip(layers, rooms, strict=True):  # [B, 2 KV, C, D]
            qkv = queries_keys_values(h, w, shape, self._ropes, self._pointwise)  # [H + 2 KV, N, D]
            room[self._rows, :, self._slots] = to_store(qkv[heads:].transpose(0, 1), room)
            made, how = [], (shape.attention_scale, shape.score_cap, w.sinks)
            for group in self._groups:
                near = to_read(room[group.rows, :, : group.read], shape.head_dim, h.dtype)
                q = qkv[:heads, group.tokens].transpose(0, 1)  # [B', H, T, D]
                a = attend(q, near[:, :kv], near[:, kv:], group.masks[w.kind], *how)
                made.append(a.transpose(1, 2).flatten(0, 1)[group.taken].flatten(1))
            a = made[0] if len(made) == 1 else torch.cat(made)
            h = after_attention(h, a, w, shape, self._pointwise)
        return h


def _neighbours(readings: Sequence[SequenceSlice]) -> list[list[SequenceSlice]]:
    """Readings whose attention is computed together."""
    groups: list[list[SequenceSlice]] = []
    for reading in readings:
        if groups and reading.row < groups[-1][0].row + NEIGHBOURS:
            groups[-1].append(reading)
        else:
            groups.append([reading])
    return groups


def _group(
    near: Sequence[SequenceSlice],
    first: int,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
) -> Group:
    """first: the number of their first token."""
    low = near[0].row
    b, t = near[-1].row + 1 - low, max(r.count for r in near)
    read = rounded(max(r.end for r in near))
    slots = torch.arange(read, device=device)
    begins = torch.zeros(b, 1, 1, dtype=torch.int64)
    tokens = torch.full((b, t), first)
    for r in near:
        at = r.row - low
        begins[at] = r.start
        tokens[at] = first
        tokens[at, : r.count] = torch.arange(first, first + r.count)
        first += r.count
    steps = torch.arange(t, device=device).view(1, t, 1)
    seen = slots <= begins.to(device) + steps  # [b, t, read], as in a chain
    for r in near:
        if r.seen is not None:
            own = seen[r.row - low, : r.count]
            own[:, r.start :] = False
            own[:, : r.end] = r.seen
    taken = [(r.row - low) * t + i for r in near for i in range(r.count)]
    return Group(
        slice(low, low + b),
        read,
        tokens.to(device),
        attention_masks(seen, shape, dtype),
        torch.tensor(taken, device=device),
    )
