"""Keys and values of all layers in one tensor, allocated once; rolling back is the caller's length.

A pass asks for its `slots` once: views of where each layer writes and of what it reads. Cutting
them out layer by layer costs eight small operations a layer.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .eight_bits import encoded, width

CLEANED = 128  # positions that are cleaned together


@dataclass(frozen=True)
class Slot:
    """One layer's part in one pass.

    store: takes [B, 2 * KV, T, D], or without B for one sequence: the new keys, then the values.
    keys, values: [B, KV, S, D] as the cache keeps them (eight_bits.py), from position 0 on,
        the new ones among them once they are stored; None where the new ones are all that is read.
    """

    store: Callable[[Tensor], object]
    keys: Tensor | None = None
    values: Tensor | None = None


def _store_bytes(view: Tensor, kv: Tensor) -> None:
    """Keep numbers in 8 bits."""
    view.copy_(encoded(kv))


def _store_rows(room: Tensor, rows: Tensor, positions: Tensor, kv: Tensor) -> None:
    """A position each of sequences `rows` [n]. room: [n, 2 * KV, C, D]."""
    room[rows, :, positions] = kv[:, :, 0]


def _store_prompts(room: Tensor, into: Tensor, of: Tensor, kv: Tensor) -> None:
    """Prompts that begin at position 0, each for one sequence or for several that go on from it.

    room: [B, 2 * KV, C, D].
    into: [m], rows of it.
    of: [m], the prompts that they begin with.
    """
    room[:, :, : kv.shape[-2]].index_copy_(0, into, kv.index_select(0, of))


class KVCache:
    """[layers, B, 2 * KV, capacity, D]. Zeros: what is masked is still read, and a NaN stays. On a
    CPU memory is taken only as sequences grow.

    eight_bits: keep bytes in the place of D numbers, as of eight_bits.py; of the slots only those
        of `slots` know of it.
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
        self._head_dim, self.eight_bits = head_dim, eight_bits
        last, kept = (width(head_dim), torch.int8) if eight_bits else (head_dim, dtype)
        size = layers, batch, 2 * kv_heads, capacity, last
        self._pages: mmap.mmap | None = None
        if device.type == "cpu" and 0 not in size:  # pages are taken when first written
            self._pages = mmap.mmap(-1, math.prod(size) * kept.itemsize, access=mmap.ACCESS_COPY)
            self.all = torch.frombuffer(self._pages, dtype=kept).view(size)
            self._begins_at = self.all.data_ptr()
        else:
            self.all = torch.zeros(size, dtype=kept, device=device)

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

    def let_go(self, layers: Sequence[int], end: int) -> None:
        """Give the system the memory back of the positions before `end` in these layers, in whole
        pages; they read as zeros then. On a CPU, where the system takes it."""
        if self._pages is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        rooms = (room for layer in layers for row in self.all[layer] for room in row)  # [C, D]
        for room in rooms:
            at = room.data_ptr() - self._begins_at
            first = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
            count = (at + room[:end].nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if count > 0:
                self._pages.madvise(mmap.MADV_DONTNEED, first, count)

    def slots(
        self, start: int, t: int, read: int, first: int = 0, last: int | None = None
    ) -> list[Slot]:
        """For the layers first..last-1 of a pass that writes t positions from `start` on, and reads
        the first `read`."""
        layers, kv = self.all[first:last], self._kv_heads
        new = layers[:, :, :, start : start + t].unbind(0)
        write = (partial(_store_bytes, view) if self.eight_bits else view.copy_ for view in new)
        keys = layers[:, :, :kv, :read].unbind(0)
        values = layers[:, :, kv:, :read].unbind(0)
        return [Slot(*each) for each in zip(write, keys, values, strict=True)]

    def scattered(
        self, positions: Tensor, read: int, first: int = 0, last: int | None = None
    ) -> list[Slot]:
        """Slots of one sequence for new `positions` [T] that are not known to the host."""
        kv = self._kv_heads
        return [
            Slot(
                partial(room[0].index_copy_, 1, positions), room[:, :kv, :read], room[:, kv:, :read]
            )
            for room in self.all[first:last].unbind(0)
        ]

    def rows(self, positions: Tensor, read: int) -> list[Slot]:
        """Slots for one new position [n] in each of the first n sequences."""
        kv, n = self._kv_heads, len(positions)
        rows = torch.arange(n, device=positions.device)
        return [
            Slot(
                partial(_store_rows, room, rows, positions),
                room[:, :kv, :read],
                room[:, kv:, :read],
            )
            for room in self.all[:, :n].unbind(0)
        ]

    def begun(self, into: Tensor, of: Tensor) -> list[Slot]:
        """Slots of prompts, as `_store_prompts` has it."""
        return [Slot(partial(_store_prompts, room, into, of)) for room in self.all.unbind(0)]

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
