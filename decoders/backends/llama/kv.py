"""Keys and values of all layers in one tensor, allocated once; rolling back is the caller's length.

A pass asks for its `slots` once: views of where each layer writes and of what it reads. Cutting
them out layer by layer costs eight small operations a layer.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .eight_bits import decoded, encoded, width

CLEANED = 128  # positions that are cleaned together


class Slot(Protocol):
    """One layer's part in one pass.

    keys, values: [B, KV, S, D], from position 0 on, the new ones among them once `store` has been
        called.
    """

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...

    def store(self, kv: Tensor) -> None:
        """kv: [B, 2 * KV, T, D], or without B for one sequence: the new keys, then the values."""


@dataclass(frozen=True)
class SliceSlot:
    """Views cut where the new positions lie. write: [B, 2 * KV, T, D]."""

    write: Tensor
    keys: Tensor
    values: Tensor

    def store(self, kv: Tensor) -> None:
        self.write.copy_(kv)


@dataclass(frozen=True)
class ScatterSlot:
    """One sequence's, for a pass that reads its position from a tensor.

    room: [2 * KV, C, D], the whole cache of the layer.
    positions: [T] of the new ones.
    """

    room: Tensor
    positions: Tensor
    keys: Tensor
    values: Tensor

    def store(self, kv: Tensor) -> None:
        self.room.index_copy_(1, self.positions, kv)


@dataclass(frozen=True)
class RowSlot:
    """Many sequences', a position each, which may differ.

    room: [n, 2 * KV, C, D].
    rows: 0..n-1.
    positions: [n].
    """

    room: Tensor
    rows: Tensor
    positions: Tensor
    keys: Tensor
    values: Tensor

    def store(self, kv: Tensor) -> None:
        self.room[self.rows, :, self.positions] = kv[:, :, 0]


class PromptSlot:
    """Prompts that begin at position 0, each for one sequence or for several that go on from it.

    room: [B, 2 * KV, C, D].
    into: [m], rows of it.
    of: [m], the prompts that they begin with.
    """

    def __init__(self, room: Tensor, into: Tensor, of: Tensor) -> None:
        self._room, self._into, self._of = room, into, of

    def store(self, kv: Tensor) -> None:
        self.keys, self.values = kv.chunk(2, -3)
        begun = self._room[:, :, : kv.shape[-2]]
        begun.index_copy_(0, self._into, kv.index_select(0, self._of))


class EightBitSlot:
    """Another slot, whose memory is of bytes (eight_bits.py)."""

    def __init__(self, slot: Slot, head_dim: int, dtype: torch.dtype) -> None:
        self._slot, self._head_dim, self._dtype = slot, head_dim, dtype

    @property
    def keys(self) -> Tensor:
        return decoded(self._slot.keys, self._head_dim, self._dtype)

    @property
    def values(self) -> Tensor:
        return decoded(self._slot.values, self._head_dim, self._dtype)

    def store(self, kv: Tensor) -> None:
        self._slot.store(encoded(kv))


class KVCache:
    """[layers, B, 2 * KV, capacity, D]. Zeros: what is masked is still read, and a NaN stays. On a
    CPU memory is taken only as sequences grow.

    eight_bits: keep bytes in the place of D numbers, as of eight_bits.py; only `slots` knows of it.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        eight_bits: bool = False,
    ) -> None:
        self._kv_heads, self.capacity = kv_heads, capacity
        self._head_dim, self._dtype, self.eight_bits = head_dim, dtype, eight_bits
        last, kept = (width(head_dim), torch.int8) if eight_bits else (head_dim, dtype)
        self.all = _zeros((layers, batch, 2 * kv_heads, capacity, last), kept, device)

    def row(self, number: int) -> KVCache:
        """One of the sequences, on its own, in the same memory."""
        one = copy(self)
        one.all = self.all[:, number : number + 1]
        return one

    def clean(self) -> None:
        """Zeros again where something is no number."""
        for part in torch.split(self.all, CLEANED, 3):
            if self.all.device.type != "cpu" or self._spoilt(part):
                part.zero_()

    def _spoilt(self, part: Tensor) -> bool:
        numbers = part
        if self.eight_bits:
            numbers = part[..., self._head_dim :].contiguous().view(torch.bfloat16)
        return not bool(numbers.isfinite().all())

    def slots(
        self, start: int, t: int, read: int, first: int = 0, last: int | None = None
    ) -> list[Slot]:
        """For the layers first..last-1 of a pass that writes t positions from `start` on, and reads
        the first `read`."""
        layers, kv = self.all[first:last], self._kv_heads
        write = layers[:, :, :, start : start + t].unbind(0)
        keys = layers[:, :, :kv, :read].unbind(0)
        values = layers[:, :, kv:, :read].unbind(0)
        made = [SliceSlot(*views) for views in zip(write, keys, values, strict=True)]
        if not self.eight_bits:
            return list[Slot](made)
        return [EightBitSlot(slot, self._head_dim, self._dtype) for slot in made]

    def scattered(
        self, positions: Tensor, read: int, first: int = 0, last: int | None = None
    ) -> list[ScatterSlot]:
        """Slots for new `positions` [T] that are not known to the host."""
        kv = self._kv_heads
        return [
            ScatterSlot(room[0], positions, room[:, :kv, :read], room[:, kv:, :read])
            for room in self.all[first:last].unbind(0)
        ]

    def rows(self, positions: Tensor, read: int) -> list[RowSlot]:
        """Slots for one new position [n] in each of the first n sequences."""
        kv, n = self._kv_heads, len(positions)
        rows = torch.arange(n, device=positions.device)
        return [
            RowSlot(room, rows, positions, room[:, :kv, :read], room[:, kv:, :read])
            for room in self.all[:, :n].unbind(0)
        ]

    def begun(self, into: Tensor, of: Tensor) -> list[PromptSlot]:
        """Slots of prompts, as PromptSlot has it."""
        return [PromptSlot(room, into, of) for room in self.all.unbind(0)]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """The first `length` positions of one sequence to another, in every layer."""
        self.all[:, target, :, :length] = self.all[:, source, :, :length]

    @property
    def position_bytes(self) -> int:
        """Bytes of one sequence's position, in all layers."""
        return self.all[:, 0, :, 0].numel() * self.all.element_size()

    def copy_out(self, start: int, end: int) -> Tensor:
        """Copy one sequence's positions from `start` to before `end`: [layers, 2 * KV, n, D]."""
        return self.all[:, 0, :, start:end].clone()

    def copy_in(self, start: int, kv: Tensor) -> None:
        """Put in what `copy_out` gave, from `start` on."""
        self.all[:, 0, :, start : start + kv.shape[-2]] = kv

    def move(self, target: slice, source: Tensor) -> None:
        """Copy positions `source` [n] to the n of `target`, in every layer."""
        self.all[:, :, :, target] = self.all[:, :, :, source]


def _zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU of pages that are taken when first written; `torch.zeros` writes them all."""
    if device.type != "cpu" or 0 in size:
        return torch.zeros(size, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(size) * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=dtype).view(size)
