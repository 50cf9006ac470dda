"""Weights in int4, a scale and a zero for each group of 32 inputs: a third of bfloat16's bytes.

A value is (q - 8) * scale + zero, q from 0 to 15. PyTorch has a kernel for it on a CPU, and on CUDA
(compute capability 8.0 or more) one on tensor cores; each wants the q laid out its own way. On a
CPU the same values are kept packed in bfloat16 for more than WIDE rows, as in int8.py; on CUDA the
one kernel reads prompts too. Neither kernel's sums depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .int8 import WIDE, in_parts
from .kernel_weight import KernelWeight

GROUP = 32  # inputs that share a scale and a zero, as in GGUF's Q4_0 and Q4_1
CUDA_CAPABILITY = (8, 0)


@dataclass(frozen=True, eq=False)
class Int4Weight(KernelWeight):
    """values: as the device's kernel wants them, uint8 [out, in / 2] on a CPU, else int32 of four
        dimensions.
    grid: bfloat16 [in / GROUP, out, 2], scale and zero.
    wide: as in Int8Weight.
    """

    precision: ClassVar[str] = "int4"
    narrow: ClassVar[int] = WIDE
    values: Tensor
    grid: Tensor
    wide: Tensor | None = None

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        return self.values, self.grid

    def numel(self) -> int:
        return self.grid.shape[0] * GROUP * self.grid.shape[1]

    def dequantised(self) -> Tensor:
        """Its product with each unit vector."""
        inputs = self.grid.shape[0] * GROUP
        units = torch.eye(inputs, dtype=self.grid.dtype, device=self.grid.device)
        return self.times(units, None).T.contiguous()

    def steps(self) -> Tensor:
        """q, int32 [out, in] from 0 to 15, out of the kernel's own order: where each step is 1 and
        each zero 0, products with unit vectors are q - 8, which bfloat16 holds exactly."""
        grid = torch.zeros_like(self.grid)
        grid[..., 0] = 1
        return Int4Weight(self.values, grid).dequantised().to(torch.int32) + 8

    def products(self, rows: Tensor) -> Tensor:
        if self.values.dtype == torch.uint8:
            return torch._weight_int4pack_mm_for_cpu(rows, self.values, GROUP, self.grid)
        return torch._weight_int4pack_mm(rows, self.values, GROUP, self.grid)


@torch.inference_mode()
def to_int4(dense: Tensor) -> Int4Weight:
    """dense: bfloat16 [out, in], whose sizes `unsupported_reason` has passed."""
    parts = [quantised(part) for part in in_parts(dense)]
    q, grid = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts], 1)
    if dense.device.type != "cpu":
        return Int4Weight(for_cuda(q), grid)
    return Int4Weight(torch._convert_weight_to_int4pack_for_cpu(q, 1), grid)


def quantised(dense: Tensor) -> tuple[Tensor, Tensor]:
    """q, int32 [out, in] from 0 to 15, and the grid of an Int4Weight.

    Each group is rounded as GGUF's Q4_1 does, between its least and greatest value, and as its
    Q4_0 does, by eighths of the value furthest from zero; the closer one stays. So a model that
    came from either format keeps its values, but for the rounding of scale and zero to bfloat16.
    """
    groups = dense.float().view(len(dense), -1, GROUP)  # [out, in / GROUP, GROUP]
    least, greatest = groups.aminmax(dim=-1, keepdim=True)
    step = (greatest - least) / 15
    eighth = torch.where(greatest > -least, greatest, least) / -8
    one = _rounded(groups, step, least + 8 * step)
    other = _rounded(groups, eighth, torch.zeros_like(eighth))
    closer = one[2] <= other[2]
    q, grid = (torch.where(closer, a, b) for a, b in zip(one[:2], other[:2], strict=True))
    return q.flatten(1).to(torch.int32), grid.to(torch.bfloat16).transpose(0, 1).contiguous()


def values_of(q: Tensor, grid: Tensor) -> Tensor:
    """bfloat16 [out, in], the values that steps q [out, in] of a grid [in / GROUP, out, 2] are."""
    scale, zero = grid.float().permute(2, 1, 0).unsqueeze(-1)  # each [out, in / GROUP, 1]
    groups = q.view(len(q), -1, GROUP)
    values: Tensor = (groups - 8) * scale + zero
    return values.to(grid.dtype).flatten(1)


@torch.inference_mode()
def rounded_values(dense: Tensor) -> Tensor:
    """bfloat16 [out, in]: what `to_int4` makes of a weight, as an ordinary tensor."""
    return torch.cat([values_of(*quantised(part)) for part in in_parts(dense)])


def _rounded(groups: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [out, in / GROUP, GROUP], the scale and zero [..., 2] as bfloat16 has them, to which q is
    rounded, and the squared error [..., 1]."""
    scale, zero = scale.bfloat16().float(), zero.bfloat16().float()
    steps = (groups - zero) / scale.masked_fill(scale == 0, 1)
    q = (steps.round() + 8).clamp(0, 15)
    error = ((q - 8) * scale + zero - groups).square().sum(-1, keepdim=True)
    return q, torch.cat([scale, zero], -1), error


def for_cuda(q: Tensor) -> Tensor:
    """q [out, in] -> int32 [out / 8, in / (16 t), 32, t / 2], the tiles of the tensor cores, as
    many t of them along the inputs in one load as fit."""
    pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    tiles = next(t for t in (8, 4, 2) if q.shape[1] % (16 * t) == 0)
    return torch._convert_weight_to_int4pack(pairs, tiles)


def unsupported_reason(sizes: Mapping[str, int]) -> str | None:
    """Why matrices of these sizes, inputs or outputs by name, are not rounded to int4, or None."""
    for name, size in sizes.items():
        if size % GROUP:
            return f"its {name} of {size} is no multiple of {GROUP}"
    return None
