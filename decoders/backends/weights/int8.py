"""Weights in int8, one scale for each of their rows: half the bytes of bfloat16 to read.

PyTorch's kernels multiply bfloat16 rows by int8 weights; for many rows at once, a prompt, they are
slow. On a CPU the int8 values are therefore kept once more, packed in bfloat16, and a wide pass
multiplies by these: the rounded weights count at every width. On CUDA only the int8 is kept, and a
wide pass multiplies by it as bfloat16, made for that pass. Up to WIDE rows a row's product does not
depend on how many others there are, so that answers do not depend on the arm. Figures in
docs/notes/performance.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernel_weight import KernelWeight

WIDE = 32  # rows up to which the narrow kernels are used: drafts are shorter, most prompts longer
AT_ONCE = 1 << 18  # weights rounded at a time on a CPU, whose cache holds what lies between
BLOCK = 16  # inputs that PyTorch's CPU kernel takes at once; of other numbers it reads beyond them


@dataclass(frozen=True, eq=False)
class Int8Weight(KernelWeight):
    """values: int8 [out, in].
    scale: bfloat16 [out].
    wide: None where only the int8 is kept.
    """

    precision: ClassVar[str] = "int8"
    narrow: ClassVar[int] = WIDE
    values: Tensor
    scale: Tensor
    wide: Tensor | None = None

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        return self.values, self.scale

    def dequantised(self) -> Tensor:
        return self.values.to(self.scale.dtype) * self.scale.unsqueeze(1)

    @cached_property
    def _in_blocks(self) -> Tensor:
        return _in_blocks(self.values)

    def products(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > WIDE:  # a whole number up to 127 is exact in bfloat16
            return (rows @ self.values.to(rows.dtype).T) * self.scale
        return torch._weight_int8pack_mm(_in_blocks(rows), self._in_blocks, self.scale)


def _in_blocks(rows: Tensor) -> Tensor:
    """rows [n, in], with zeros up to a multiple of BLOCK inputs."""
    beyond = -rows.shape[1] % BLOCK
    return F.pad(rows, (0, beyond)) if beyond else rows


@torch.inference_mode()
def to_int8(dense: Tensor) -> Int8Weight:
    """dense: bfloat16 [out, in], rounded to the nearest of 255 steps of its row's largest entry.
    The step is bfloat16 itself, so that the values are rounded to what will be multiplied."""
    parts = [_rounded(rows) for rows in in_parts(dense)]
    values, scale = (torch.cat(part) for part in zip(*parts, strict=True))
    return Int8Weight(values, scale)


def in_parts(dense: Tensor, step: int = 1) -> Sequence[Tensor]:
    """The rows of a matrix [out, in] in the portions that are rounded at a time, in `step`s."""
    most = AT_ONCE if dense.device.type == "cpu" else 64 * AT_ONCE
    return torch.split(dense, max(1, most // (dense.shape[1] * step)) * step)


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [n, in] and scales [n]."""
    scale = (rows.abs().amax(1).float() / 127).clamp(min=1e-30).to(torch.bfloat16)
    steps = (rows.float() / scale.float().unsqueeze(1)).round().clamp(-127, 127)
    return steps.to(torch.int8), scale
