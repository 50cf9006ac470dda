"""Weights in int8 for a CPU: half the bytes of bfloat16 to read for each token.

PyTorch's kernel multiplies bfloat16 rows by int8 weights with one scale for each of their rows. For
many rows at once, a prompt, it is slow, so that the packed bfloat16 weight is kept beside it: the
prompt is read by the model itself, what follows by its int8 copy. Every arm does the same, and a
row's product does not depend on how many others there are (up to WIDE), so that answers do not
depend on the arm. Figures in docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WIDE = 32  # rows up to which the int8 copy is used: drafts are shorter, nearly all prompts longer


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """values: int8 [out, in]. scale: bfloat16 [out]. wide: the same weight unrounded, packed."""

    values: Tensor
    scale: Tensor
    wide: Tensor

    def numel(self) -> int:
        return self.values.numel()

    def times(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., in] -> [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        made = torch._weight_int8pack_mm(rows, self.values, self.scale)
        return (made if bias is None else made + bias).view(*x.shape[:-1], -1)


@torch.inference_mode()
def to_int8(dense: Tensor, wide: Tensor) -> Int8Weight:
    """dense: bfloat16 [out, in], rounded to the nearest of 255 steps of its row's largest entry.
    The step is bfloat16 itself, so that the values are rounded to what will be multiplied."""
    scale = (dense.abs().amax(1).float() / 127).clamp(min=1e-30).to(torch.bfloat16)
    steps = (dense.float() / scale.float().unsqueeze(1)).round().clamp(-127, 127)
    return Int8Weight(steps.to(torch.int8), scale, wide)
