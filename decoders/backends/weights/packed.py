"""Weights laid out for the CPU's matrix kernels once, at load, instead of at every product.

PyTorch's ordinary linear hands a weight to the kernel library as it lies in memory. oneDNN, which
PyTorch carries, multiplies 2 to 3 times faster by a weight that was reordered beforehand (figures
in docs/notes/performance.md). The result is an opaque tensor: `dense` brings it back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocked import Int4Blocks, Int8Blocks, fits, to_bf16_blocks, to_int4_blocks, to_int8_blocks
from .file_blocks import FileBlocks
from .int4 import Int4Weight, rounded_values, to_int4
from .int8 import WIDE, Int8Weight, to_int8
from .kernel_weight import KernelWeight

Rounding = Literal["int8", "int4", "file"]  # "file": not rounded again, a GGUF file's own blocks
Rounded = Int8Weight | Int4Weight  # or the same in blocks
Matrix = Tensor | KernelWeight  # [out, in]
MADE_BY: dict[type[Rounded], Callable[[Tensor], Rounded]] = {
    Int8Weight: to_int8,
    Int4Weight: to_int4,
    Int8Blocks: to_int8_blocks,
    Int4Blocks: to_int4_blocks,
}

ONE_SUM = 1024  # up to this many inputs, oneDNN sums a single row like each of several
WIDTH_HINT = 16  # the layout chosen for this many rows was the best or equal at widths 1 to 512


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine multiplies by reordered weights of this dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return _has_bfloat16()
    return dtype == torch.float32


@cache
def _has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16, with the instructions that it may use."""
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return supported and most not in ("SSE41", "AVX", "AVX2", "AVX2_VNNI")


@torch.inference_mode()
def pack(weight: Matrix) -> Matrix:
    """weight: [out, in], ordinary or packed already. The same weight where it cannot be packed."""
    if isinstance(weight, KernelWeight) or weight.is_mkldnn:
        return weight
    if not can_pack(weight.device, weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), WIDTH_HINT)
    return packed


def in_blocks(weight: Matrix) -> Matrix:
    """Lay weights out in blocks for the kernels in C++, where the sizes fit them, else packed;
    bfloat16."""
    if isinstance(weight, KernelWeight) or not fits(weight.shape):
        return pack(weight)
    return to_bf16_blocks(dense(weight))


def kind_of(rounding: Rounding, sizes: torch.Size, blocked: bool) -> type[Rounded]:
    """What a matrix [out, in] is rounded to. blocked: for the kernels of blocked.py, where the
    sizes fit them."""
    if blocked and fits(sizes):
        return Int8Blocks if rounding == "int8" else Int4Blocks
    return Int8Weight if rounding == "int8" else Int4Weight


def rounded(rounding: Rounding, dense: Tensor, blocked: bool = False) -> Rounded:
    """dense: bfloat16 [out, in], ordinary. blocked: as in `kind_of`."""
    return MADE_BY[kind_of(rounding, dense.shape, blocked)](dense)


Rounder = Callable[[Rounding, Tensor], Rounded]


def narrowed(rounding: Rounding, weight: Matrix, by: Rounder = rounded) -> Matrix:
    """Round weights to int8 or int4; on a CPU the same values also packed in bfloat16, where
    prompts are faster so."""
    if isinstance(weight, KernelWeight):
        return weight
    plain = dense(weight)
    made = by(rounding, plain)
    if plain.device.type != "cpu":
        return made
    if isinstance(made, Int8Blocks | Int4Blocks) and not can_pack(plain.device, plain.dtype):
        return made  # oneDNN has no bfloat16 here: the blocks are multiplied by at every width
    values = rounded_values(plain) if type(made) is Int4Weight else made.dequantised()
    wide = pack(values)
    assert not isinstance(wide, KernelWeight)
    return replace(made, wide=wide)


def dense(weight: Matrix) -> Tensor:
    """The weight that products are of, as an ordinary tensor [out, in]."""
    if isinstance(weight, KernelWeight):
        return weight.dequantised() if weight.wide is None else dense(weight.wide)
    return weight.to_dense() if weight.is_mkldnn else weight


def rows_of(weight: Matrix, ids: Tensor) -> Tensor:
    """Rows [..., in] of a weight [out, in], of ids [...]; bfloat16 of a file's blocks."""
    if isinstance(weight, FileBlocks):
        return weight.rows(ids).to(weight.dtype)
    return F.embedding(ids, dense(weight))


def part_of(weight: Matrix, nth: int, count: int) -> Matrix:
    """One of `count` matrices of as many outputs that lie below each other; of a file's blocks or
    ordinary."""
    if isinstance(weight, FileBlocks):
        return weight.part(nth, count)
    assert isinstance(weight, Tensor)
    outputs = len(weight) // count
    return weight[nth * outputs : (nth + 1) * outputs]


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [out, in].T + bias [out], packed or not; [..., out]."""
    if isinstance(weight, KernelWeight):
        if weight.wide is not None and x.numel() > weight.narrow * x.shape[-1]:
            return linear(x, weight.wide, bias)
        return weight.times(x, bias)
    if weight.is_mkldnn:
        if x.numel() == x.shape[-1] > ONE_SUM:  # a lone row, as its row of a wider product
            both = linear(x.reshape(1, -1).expand(2, -1), weight, bias)
            return both[0].view(*x.shape[:-1], -1)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    if float32_pays(x):
        of_bias = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), of_bias).to(x.dtype)
    return F.linear(x, weight, bias)


def float32_pays(x: Tensor) -> bool:
    """Whether a product of x [..., in] is faster in float32, conversion included: of more than WIDE
    rows of bfloat16 on a CPU for which oneDNN has none, up to four times."""
    on_cpu = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return on_cpu and x.numel() > WIDE * x.shape[-1] and not can_pack(x.device, x.dtype)
