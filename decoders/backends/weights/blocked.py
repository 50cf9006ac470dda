"""int4, int8 and bfloat16 weights laid out in blocks, for kernels of draftpick's own.

PyTorch's own kernels for rounded weights expand them again for every four rows, so that a pass over
16 tokens costs five times one over a single token. The kernels (cpp/products.h) expand them once
for twelve rows with AVX-512, for five with AVX2 and on a 64-bit Arm, for 32 on tiles (AMX): a pass
over one token takes half of the time or two thirds, one over 32 half or two fifths
(docs/notes/performance.md), so that drafts and shared passes may be that much wider. In bfloat16 a
product of a few rows takes half of oneDNN's time, one of many as long. They are compiled once for a
machine. A row's product does not depend on how many others there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .int4 import GROUP, Int4Weight, quantised, values_of
from .int8 import Int8Weight, in_parts, to_int8
from .kernel_weight import KernelWeight

OUTS = 16  # outputs of a block
PAIRS = {torch.int8: torch.int16, torch.bfloat16: torch.int32}  # two numbers as one
SHIFTS = torch.arange(4).unsqueeze(1) * 4 + torch.arange(2) * 16  # bits of eight inputs in an int32
NARROW = 96  # rows up to which the kernels are used; for more, oneDNN is as fast


def fits(sizes: torch.Size) -> bool:
    """Whether a matrix [out, in] can be laid out so."""
    return sizes[0] % OUTS == 0 and sizes[1] % GROUP == 0


@dataclass(frozen=True, eq=False)
class Int4Blocks(Int4Weight):
    """int4 weights in blocks of OUTS outputs and GROUP inputs.

    values: int32 [out / OUTS, in / GROUP, 4, OUTS], each eight inputs of one output
        (cpp/weights.h).
    grid: bfloat16 [out / OUTS, in / GROUP, OUTS, 2], scale and zero.
    """

    narrow: ClassVar[int] = NARROW

    def numel(self) -> int:
        return self.values.numel() * 8

    def dequantised(self) -> Tensor:
        eights = self.values.permute(0, 3, 1, 2)  # as in `_int4_blocks`
        # shift by shift and in bytes: all shifts at once take up to 2.6 times as long
        each = [(eights >> shift & 15).to(torch.int8) for shift in SHIFTS.flatten().tolist()]
        q = torch.stack(each, -1).view(len(self.values) * OUTS, -1)
        return values_of(q, self.grid.transpose(0, 1).flatten(1, 2))

    def products(self, rows: Tensor) -> Tensor:
        made: Tensor = torch.ops.draftpick.int4_blocks(rows, self.values, self.grid)
        return made


@dataclass(frozen=True, eq=False)
class Int8Blocks(Int8Weight):
    """int8 weights in blocks of OUTS outputs and GROUP inputs.

    values: int8 [out / OUTS, in / GROUP, GROUP / 2, OUTS, 2], the inputs in pairs.
    scale: bfloat16 [out].
    """

    narrow: ClassVar[int] = NARROW

    def dequantised(self) -> Tensor:
        values = self.values.permute(0, 3, 1, 2, 4).reshape(len(self.scale), -1)
        return values.to(self.scale.dtype) * self.scale.unsqueeze(1)

    def products(self, rows: Tensor) -> Tensor:
        made: Tensor = torch.ops.draftpick.int8_blocks(rows, self.values, self.scale)
        return made


@dataclass(frozen=True, eq=False)
class Bf16Blocks(KernelWeight):
    """bfloat16 weights in blocks of OUTS outputs and GROUP inputs.

    values: bfloat16 [out / OUTS, in / GROUP, GROUP / 2, OUTS, 2].
    """

    precision: ClassVar[str] = "bfloat16"
    narrow: ClassVar[int] = NARROW
    values: Tensor
    wide: Tensor | None = None

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        """The values, and nothing for a scale."""
        return self.values, self.values.new_empty(0)

    def dequantised(self) -> Tensor:
        values = self.values.permute(0, 3, 1, 2, 4)
        return values.reshape(self.values.shape[0] * OUTS, -1)

    def products(self, rows: Tensor) -> Tensor:
        made: Tensor = torch.ops.draftpick.bf16_blocks(rows, self.values)
        return made


Blocks = Int4Blocks | Int8Blocks | Bf16Blocks


@torch.inference_mode()
def to_int4_blocks(dense: Tensor) -> Int4Blocks:
    """dense: bfloat16 [out, in], which `fits`; rounded as `to_int4` does."""
    parts = [_int4_blocks(part) for part in in_parts(dense, OUTS)]
    values, grid = (torch.cat(each) for each in zip(*parts, strict=True))
    return Int4Blocks(values, grid)


def _int4_blocks(rows: Tensor) -> tuple[Tensor, Tensor]:
    """values and grid of some rows, a multiple of OUTS."""
    q, grid = quantised(rows)
    blocks = q.view(-1, OUTS, q.shape[1] // GROUP, 4, 4, 2)
    values = (blocks << SHIFTS).sum((-2, -1), dtype=torch.int32).permute(0, 2, 3, 1)
    return values, grid.view(len(grid), -1, OUTS, 2).transpose(0, 1)


@torch.inference_mode()
def to_int8_blocks(dense: Tensor) -> Int8Blocks:
    """Likewise, as `to_int8` does."""
    plain = to_int8(dense)
    return Int8Blocks(_paired(plain.values), plain.scale)


@torch.inference_mode()
def to_bf16_blocks(dense: Tensor) -> Bf16Blocks:
    """dense: bfloat16 [out, in], which `fits`."""
    return Bf16Blocks(_paired(dense))


def _paired(values: Tensor) -> Tensor:
    """[out, in] -> [out / OUTS, in / GROUP, GROUP / 2, OUTS, 2]."""
    pairs = values.contiguous().view(PAIRS[values.dtype])
    blocks = pairs.view(-1, OUTS, values.shape[1] // GROUP, GROUP // 2).permute(0, 2, 3, 1)
    return blocks.contiguous().view(values.dtype).view(*blocks.shape, 2)


def norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows by the kernel; bfloat16, of a multiple of 16 numbers."""
    made: Tensor = torch.ops.draftpick.norm_rows(x, weight, eps)
    return made
