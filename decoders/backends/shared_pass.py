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

from .kv import KVCache
from .llama_model import (
    LayerWeights,
    Rope,
    Shape,
    after_attention,
    all_heads,
    attend,
    attention_mask,
    queries_keys_values,
    rounded,
)

NEIGHBOURS = 8  # rows whose attention is computed at once


@dataclass(frozen=True)
class Reading:
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


@dataclass(frozen=True)
class _Group:
    """Neighbouring rows.

    rows: of the cache, those in between that read nothing included.
    read: positions.
    tokens: [B, T] which token of the pass each place is; what has none repeats another.
    mask: as `attention_mask` makes it.
    taken: [n] the places, of B * T, that are tokens.
    """

    rows: slice
    read: int
    tokens: Tensor
    mask: Tensor
    taken: Tensor


class SharedPass:
    """What all layers need to know of one pass.

    readings: at least one, by growing row.
    """

    def __init__(
        self, readings: Sequence[Reading], shape: Shape, rope: Rope, cache: KVCache
    ) -> None:
        self._shape, self._cache = shape, cache
        device, dtype = rope[0].device, rope[0].dtype
        rows = [r.row for r in readings for _ in range(r.count)]
        slots = [at for r in readings for at in range(r.start, r.end)]
        self._rows = torch.tensor(rows, device=device)  # [N], of each token
        self._slots = torch.tensor(slots, device=device)  # [N], where it is kept
        turned = self._slots
        if any(r.depths is not None for r in readings):
            parts = torch.split(self._slots, [r.count for r in readings])
            pairs = zip(readings, parts, strict=True)
            turned = torch.cat([p if r.depths is None else r.depths for r, p in pairs])
        self._rope = all_heads((rope[0][turned], rope[1][turned]), shape)
        self._groups, first = list[_Group](), 0
        for near in _neighbours(readings):
            self._groups.append(_group(near, first, shape, dtype, device))
            first += sum(r.count for r in near)

    def through(self, h: Tensor, layers: Sequence[LayerWeights], first: int = 0) -> Tensor:
        """h [N, d], the readings' tokens one after the other, through `layers`, the first of which
        is the model's layer `first`; [N, d]."""
        heads, kv = self._shape.heads, self._shape.kv_heads
        rooms = self._cache.all[first : first + len(layers)].unbind(0)
        for w, room in zip(layers, rooms, strict=True):  # [B, 2 KV, C, D]
            qkv = queries_keys_values(h, w, self._shape, self._rope)  # [H + 2 KV, N, D]
            room[self._rows, :, self._slots] = qkv[heads:].transpose(0, 1)
            made = []
            for g in self._groups:
                near = room[g.rows, :, : g.read]
                q = qkv[:heads, g.tokens].transpose(0, 1)  # [B, H, T, D]
                a = attend(q, near[:, :kv], near[:, kv:], g.mask)
                made.append(a.transpose(1, 2).flatten(0, 1)[g.taken].flatten(1))
            h = after_attention(h, torch.cat(made), w, self._shape)
        return h


def _neighbours(readings: Sequence[Reading]) -> list[list[Reading]]:
    """Readings whose attention is computed together."""
    groups: list[list[Reading]] = []
    for reading in readings:
        if groups and reading.row < groups[-1][0].row + NEIGHBOURS:
            groups[-1].append(reading)
        else:
            groups.append([reading])
    return groups


def _group(
    near: Sequence[Reading], first: int, shape: Shape, dtype: torch.dtype, device: torch.device
) -> _Group:
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
    return _Group(
        slice(low, low + b),
        read,
        tokens.to(device),
        attention_mask(seen, shape, dtype),
        torch.tensor(taken, device=device),
    )
