"""A model's layers by the kernels in C++ (cpp/layers.h), for weights in blocks (blocked.py).

A pass over a few tokens is one call: nothing is started by PyTorch between its products, and there
is nothing to compile for a model. The same kernels read one sequence and several, and a token's
bits do not depend on what is read with it. Of wider passes, prompts, the products are those of
`packed.linear`, PyTorch's where rounded weights have others next to them, and what lies between
them is run by the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..llama.eight_bits import to_store
from ..llama.kv import KVCache
from ..llama.model import (
    LayerWeights,
    PointwiseOps,
    Rope,
    RopeTables,
    after_attention,
    experts,
    queries_keys_values,
    ropes_at,
)
from ..llama.reading import SequenceSlice
from ..llama.shape import Shape
from ..weights.blocked import NARROW, OUTS, Blocks, norm_rows
from ..weights.file_blocks import FileBlocks
from ..weights.int4 import GROUP
from ..weights.kernel_weight import KernelWeight
from .row_attention import HEAD, SPAN, AttentionSpans

ACTIVATIONS = ("silu", "gelu", "clamped")  # in the order of pointwise.h


def unsupported_reason(shape: Shape, layers: Sequence[LayerWeights]) -> str | None:
    """Why the kernels do not run such layers; None where they do."""
    if shape.head_dim % HEAD:
        return f"its heads have {shape.head_dim} dimensions, not a multiple of {HEAD}"
    if any(0 < kind.window <= SPAN for kind in shape.kinds):
        return f"a window of its attention has no more than {SPAN} positions"
    matrices = [matrix for w in layers for matrix in (w.qkv, w.out)]
    matrices += [matrix for w in layers if w.router is None for matrix in (w.gate_up, w.down)]
    if not all(
        isinstance(matrix, Blocks) or (isinstance(matrix, FileBlocks) and matrix.whole)
        for matrix in matrices
    ):
        return f"its matrices are not of {OUTS} outputs by {GROUP} inputs, or multiples of these"
    return None


def stored(weights: LayerWeights) -> list[Tensor]:
    """A layer's tensors in the order of its fields, two of a matrix, of nothing for what it
    lacks."""
    parts, nothing = weights.tensors(), torch.empty(0, dtype=torch.bfloat16)
    made: list[Tensor] = []
    for field in fields(weights):
        part = parts.get(field.name, nothing)
        if field.name != "kind":
            made += part.stored if isinstance(part, KernelWeight) else (part,)
    return made


class KernelLayers:
    """Layers that are no `unsupported_reason`, on a cache.

    most: tokens of a pass.
    pointwise: what is between the products of wider ones.
    """

    most: ClassVar[int] = NARROW

    def __init__(
        self, layers: Sequence[LayerWeights], cache: KVCache, shape: Shape, rope: RopeTables
    ) -> None:
        self._cache, self._shape, self._rope, self._layers = cache, shape, rope, layers
        mlps = [matrix for w in layers for matrix in (w.gate_up, w.down)]
        self._whole = all(isinstance(each, KernelWeight) for each in mlps)  # or PyTorch runs some
        self._weights = [t for w in layers for t in stored(w)] if self._whole else []
        self._count = len(self._weights) // len(layers)
        self._kinds = [w.kind for w in layers]
        self._scale = shape.attention_scale or shape.head_dim**-0.5
        by_kernel = _experts if self._whole else experts
        self.pointwise = PointwiseOps(norm_rows, _turned, _added, _gated, by_kernel)

    def over(self, cache: KVCache) -> Self:
        """The same weights on another cache."""
        other = copy(self)
        other._cache = cache
        return other

    def through(self, h: Tensor, first: int, last: int, reading: SequenceSlice) -> Tensor | None:
        """h [T, d] through the layers first..last-1; None where a tree is too large for bits."""
        spans = AttentionSpans.of([reading])
        if spans is None:
            return None
        if len(h) > self.most:
            return self.wider(h, self._layers[first:last], first, spans)
        return self.read(h, first, last, spans)

    def wider(
        self, h: Tensor, layers: Sequence[LayerWeights], first: int, spans: AttentionSpans
    ) -> Tensor:
        """h [N, d] through `layers`, the first of which is the model's layer `first`, an operation
        after the other."""
        shape, places = self._shape, (spans.rows, spans.begins, spans.bits)
        how = shape.attention_scale, shape.score_cap or 0.0
        ropes = ropes_at(self._rope, spans.depths, shape)
        rooms = self._cache.all[first : first + len(layers)].unbind(0)  # [B, 2 KV, C, D] each
        for w, room in zip(layers, rooms, strict=True):
            qkv = queries_keys_values(h, w, shape, ropes, self.pointwise)  # [H + 2 KV, N, D]
            room[spans.rows, :, spans.slots] = to_store(qkv[shape.heads :].transpose(0, 1), room)
            window = shape.kinds[w.kind].window
            lows = spans.lows(window) if window else None
            q = qkv[: shape.heads]
            a = torch.ops.draftpick.attend_rows(q, room, *places, *how, lows, w.sinks)
            h = after_attention(h, a, w, shape, self.pointwise)
        return h

    def read(self, h: Tensor, first: int, last: int, spans: AttentionSpans) -> Tensor:
        """h [N, d] through the model's layers first..last-1, of few tokens."""
        if not self._whole:
            return self.wider(h, self._layers[first:last], first, spans)
        at = spans.depths
        cos, sin = (torch.stack([rope[part][at] for rope in self._rope]) for part in (0, 1))
        made: Tensor = torch.ops.draftpick.run_layers(
            h,
            cos,
            sin,
            spans.rows,
            spans.slots,
            spans.begins,
            spans.bits,
            torch.stack([spans.lows(kind.window) for kind in self._shape.kinds]),
            self._cache.all[first:last],
            self._weights[first * self._count : last * self._count],
            self._kinds[first:last],
            self._shape.norm_eps,
            self._scale,
            self._shape.score_cap or 0.0,
            ACTIVATIONS.index(self._shape.activation),
            *_taken(self._shape),
        )
        return made


def _turned(qkv: Tensor, head_norms: Tensor | None, shape: Shape, rope: Rope) -> Tensor:
    """Split and rotate queries and keys in the memory of qkv [T, (H + 2 KV) * D]."""
    cos, sin = (part[0] for part in rope)  # those of any query head
    sizes = shape.heads, shape.kv_heads, shape.norm_eps
    torch.ops.draftpick.turn_rows(qkv, head_norms, cos, sin, *sizes)
    return qkv.view(len(qkv), -1, shape.head_dim).transpose(0, 1)


def _taken(shape: Shape) -> tuple[int, bool]:
    return (0, False) if shape.experts is None else (shape.experts.taken, shape.experts.whole)


def _experts(x: Tensor, w: LayerWeights, router: Tensor, shape: Shape) -> Tensor:
    assert isinstance(w.gate_up, FileBlocks) and isinstance(w.down, FileBlocks)
    parts, how = (*w.gate_up.stored, *w.down.stored), ACTIVATIONS.index(shape.activation)
    biases = w.router_bias, w.gate_up_bias, w.down_bias
    rows = x.reshape(-1, x.shape[-1])
    run = torch.ops.draftpick.expert_rows
    made: Tensor = run(
        rows,
        router,
        *parts,
        *_taken(shape),
        how,
        [x.new_empty(0) if each is None else each for each in biases],
    )
    return made.view_as(x)


def _gated(gate_up: Tensor, activation: str) -> Tensor:
    made: Tensor = torch.ops.draftpick.gate_rows(gate_up, ACTIVATIONS.index(activation))
    return made


def _added(h: Tensor, a: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h, x = torch.ops.draftpick.add_norm_rows(h, a, weight, eps)
    return h, x
