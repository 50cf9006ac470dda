"""Keys and values in 8 bits: each 32 numbers as whole ones from -127 to 127 and the size of a step,
as in llama.cpp's Q8_0, but in bfloat16, whose range never ends too early.

What is stored is read back before it is used, also in the pass that made it, so that a token sees
the same numbers however many are read with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32  # numbers with one size of a step; a head of another size has one for all
MAX_INT8 = 127


def width(head_dim: int) -> int:
    """Bytes of one head's key or value: a number each, then the steps."""
    return head_dim + 2 * _groups(head_dim)


def encoded(kv: Tensor) -> Tensor:
    """[..., D] -> int8 [..., width(D)]. What is no number stays none."""
    groups = _grouped(kv).float()
    steps = (groups.abs().amax(-1, keepdim=True) / MAX_INT8).bfloat16()
    wide = steps.float()
    numbers = (groups / torch.where(wide > 0, wide, 1.0)).round().clamp(-MAX_INT8, MAX_INT8)
    whole = numbers.nan_to_num(0.0).to(torch.int8).flatten(-2)
    return torch.cat([whole, steps.squeeze(-1).contiguous().view(torch.int8)], -1)


def decoded(kept: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """int8 [..., width(D)] -> [..., D], nearly what was encoded."""
    numbers = _grouped(kept[..., :head_dim]).float()
    steps = kept[..., head_dim:].contiguous().view(torch.bfloat16).unsqueeze(-1)
    back: Tensor = (numbers * steps.float()).flatten(-2)
    return back.to(dtype)


def to_store(kv: Tensor, room: Tensor) -> Tensor:
    """[..., D] as a room keeps it: one of bytes in 8 bits, any other as it is."""
    return encoded(kv) if room.dtype == torch.int8 else kv


def to_read(kept: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """[..., D] of what a room keeps."""
    return decoded(kept, head_dim, dtype) if kept.dtype == torch.int8 else kept


def _grouped(numbers: Tensor) -> Tensor:
    return numbers.reshape(*numbers.shape[:-1], _groups(numbers.shape[-1]), -1)


def _groups(head_dim: int) -> int:
    return head_dim // GROUP if head_dim % GROUP == 0 else 1
