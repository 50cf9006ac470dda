"""What lies between the products of a layer as machine code, for passes over many tokens.

A prompt's products take half of its time; the rest goes by in some twenty operations a layer, each
of which reads and writes all of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .compiled import Example, Program
from .int8 import WIDE
from .llama_model import Between, Rope, Shape, added, all_heads, gated, rms_norm, turned

COUNT = 2 * WIDE  # tokens that the programs are traced with
PARTS = ("normed", "turned", "added", "gated")


class Part(torch.nn.Module):
    """A function of tensors alone."""

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.function(*given)


def traced_parts(example: Example) -> dict[str, torch.export.ExportedProgram]:
    """By PARTS, its operations for any number of tokens."""
    shape, layer, dtype = example.shape, example.layer, example.rope[0].dtype
    eps, norms = shape.norm_eps, layer.head_norms
    with torch.inference_mode(False), torch.no_grad():
        cos, sin = (part[:COUNT].clone() for part in example.rope)
        h, weight = torch.zeros(COUNT, shape.hidden, dtype=dtype), layer.mlp_norm.clone()
        qkv = torch.zeros(COUNT, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype=dtype)
        rope = all_heads((cos, sin), shape)
        wide = torch.zeros(COUNT, 2 * layer.down.numel() // shape.hidden, dtype=dtype)
        head_norms = [] if norms is None else [norms.clone()]
        return {
            "normed": _export(partial(rms_norm, eps=eps), [h, weight], [0]),
            "turned": _export(partial(_turned, shape), [qkv, *rope, *head_norms], [0, 1, 1]),
            "added": _export(partial(added, eps=eps), [h, h.clone(), weight], [0, 0]),
            "gated": _export(gated, [wide], [0]),
        }


def between(programs: Mapping[str, Program]) -> Between:
    """programs: by PARTS."""
    normed_, turned_, added_, gated_ = (programs[name] for name in PARTS)

    def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return normed_([x, weight])[0]

    def turn(qkv: Tensor, head_norms: Tensor | None, shape: Shape, rope: Rope) -> Tensor:
        return turned_([qkv, *rope, *([] if head_norms is None else [head_norms])])[0]

    def add(h: Tensor, a: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        h, x = added_([h, a, weight])
        return h, x

    return Between(normed, turn, add, lambda gate_up: gated_([gate_up])[0])


def _turned(
    shape: Shape, qkv: Tensor, cos: Tensor, sin: Tensor, norms: Tensor | None = None
) -> Tensor:
    return turned(qkv, norms, shape, (cos, sin))


def _export(
    function: Callable[..., Tensor | tuple[Tensor, Tensor]],
    given: list[Tensor],
    tokens: Sequence[int],
) -> torch.export.ExportedProgram:
    """tokens: of the first ones given, the axis of the tokens, of which there may be any number;
    the others have none."""
    count = torch.export.Dim("count", min=2, max=1 << 20)
    sizes: list[dict[int, Any]] = [{axis: count} for axis in tokens]
    sizes += [{} for _ in given[len(tokens) :]]
    return torch.export.export(Part(function), tuple(given), dynamic_shapes=(tuple(sizes),))
