"""Weights as a GGUF file has them, its own steps and scales, laid out for the kernels in C++.

Rounded to nothing else: a product rounds its inputs, to whole numbers up to 127 of every 32 (on
tiles, AMX, of every 256 in blocks of 256), and multiplies these by the file's steps exactly
(cpp/file_products.h, cpp/file_products_amx.h). So a row's product has the same bits in any company,
prompts included. The layout is in cpp/file_blocks.h.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .blocked import NARROW, OUTS
from .kernel_weight import KernelWeight

LARGE_PAGE = 1 << 21  # bytes of a large page
DEQUANTISED_AT_ONCE = 1 << 24  # weights


@dataclass(frozen=True)
class FileRows:
    """A matrix in a file. rows: uint8 [out, bytes]. kind: its number in GGUF. inputs: of an
    output."""

    rows: Tensor
    kind: int
    inputs: int


@dataclass(frozen=True, eq=False)
class FileBlocks(KernelWeight):
    """One or several matrices of a file below each other, each of its own kind.

    values: uint8 [bytes], the blocks of all.
    table: int64 [parts, 4], of each its kind, its outputs up to a multiple of OUTS, its inputs, and
        where in `values` it begins.
    outputs: those that there are.
    dtype: of its rows, and of what is multiplied by it.
    """

    precision: ClassVar[str] = "file"
    narrow: ClassVar[int] = NARROW
    dtype: ClassVar[torch.dtype] = torch.bfloat16
    values: Tensor
    table: Tensor
    outputs: int
    wide: Tensor | None = None

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        return self.values, self.table

    @property
    def inputs(self) -> int:
        return int(self.table[0, 2])

    @property
    def whole(self) -> bool:
        """Whether no output was added to fill a block."""
        return self.outputs % OUTS == 0

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.outputs, self.inputs))

    def numel(self) -> int:
        return self.outputs * self.inputs

    def part(self, nth: int, count: int) -> FileBlocks:
        """One of `count` matrices of as many parts that it was made of."""
        parts = len(self.table) // count
        table = self.table[nth * parts : (nth + 1) * parts]
        return FileBlocks(self.values, table, self.outputs // count)

    def rows(self, ids: Tensor) -> Tensor:
        """The weights of some outputs, ids [...] -> float32 [..., in]."""
        made: Tensor = torch.ops.draftpick.file_rows(self.values, self.table, ids.reshape(-1))
        return made.view(*ids.shape, -1)

    def dequantised(self) -> Tensor:
        """The nearest to the file's numbers."""
        made = torch.empty(self.outputs, self.inputs, dtype=torch.bfloat16)
        step = max(1, DEQUANTISED_AT_ONCE // self.inputs)
        for first in range(0, self.outputs, step):
            ids = torch.arange(first, min(first + step, self.outputs))
            made[first : first + step] = self.rows(ids)
        return made

    def products(self, rows: Tensor) -> Tensor:
        made: Tensor = torch.ops.draftpick.file_blocks(rows, self.values, self.table)
        return made[:, : self.outputs]


def in_large_pages(size: int) -> Tensor:
    """uint8 [size], in pages of two megabytes where the system has them: weights are read a tenth
    faster than in pages of four kilobytes."""
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def to_file_blocks(parts: Sequence[FileRows]) -> FileBlocks | None:
    """Matrices of as many inputs, below each other; all but the last of whole blocks. None where
    the kernels have no such blocks."""
    size_of = torch.ops.draftpick.file_bytes
    sizes = [size_of(each.kind, len(each.rows), each.inputs) for each in parts]
    whole = all(len(each.rows) % OUTS == 0 for each in parts[:-1])
    if not whole or min(sizes) < 0 or any(each.inputs != parts[0].inputs for each in parts):
        return None
    values = in_large_pages(sum(sizes))
    table, at = [], 0
    for each, size in zip(parts, sizes, strict=True):
        torch.ops.draftpick.file_lay_out(each.rows, each.kind, each.inputs, values[at : at + size])
        table.append((each.kind, -(-len(each.rows) // OUTS) * OUTS, each.inputs, at))
        at += size
    outputs = sum(len(each.rows) for each in parts)
    return FileBlocks(values, torch.tensor(table), outputs)
