"""One pass over new tokens of many sequences, every one at a position of its own.

Three ways to the same states: PyTorch's operations, anywhere; and kernels that read no more of a
row than it has, on CUDA those of row_kernels.py, where Triton runs and the model has the usual
shape, on a CPU those in C++, of a model whose weights lie in blocks for them (cpp/layers.py).
Nothing is read on the host, so that the first two may be recorded as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ..cpp.layers import KernelLayers, unsupported_reason
from ..cpp.row_attention import AttentionSpans
from ..cuda import runs_triton
from ..llama.attention import attend, attention_masks, rounded
from ..llama.kv import KVCache
from ..llama.model import (
    LayerWeights,
    Part,
    Place,
    RopeTables,
    after_attention,
    layer,
    not_as_llama,
    queries_keys_values,
    ropes_at,
)
from ..llama.shape import Shape
from ..weights.packed import linear

POWERS = (16, 32, 64, 128, 256)  # head sizes that a tile of a kernel can have


def kernels_for(shape: Shape, layers: Sequence[LayerWeights], device: torch.device) -> bool:
    """Whether the kernels run such a model."""
    usual = shape.head_dim in POWERS and not_as_llama(shape, layers) is None
    return usual and runs_triton(device)


class RowPasses:
    """The layers of a model over the first n rows of a cache. fast: on CUDA by the kernels."""

    def __init__(
        self,
        shape: Shape,
        layers: Sequence[LayerWeights],
        rope: RopeTables,
        cache: KVCache,
        fast: bool,
    ) -> None:
        self._shape, self._layers, self._rope, self._cache = shape, layers, rope, cache
        self._fast: ModuleType | None = None
        if fast:
            from ..cuda import row_kernels

            self._fast = row_kernels
        fits = (
            cache.all.device.type == "cpu" and layers and unsupported_reason(shape, layers) is None
        )
        self._in_blocks = KernelLayers(layers, cache, shape, rope) if fits else None

    def through(
        self, h: Tensor, positions: Tensor, lengths: Tensor, parts: Sequence[Part]
    ) -> Tensor:
        """h: [n, d], states of the new tokens, at `positions` int64 [n]; its memory may be used.
        lengths: int64 [n], how many positions each row looks at, at least 1.
        parts: all rows, each part with the most positions that one of its rows looks at; the
            kernels take no notice.

        Returns [n, d] after the last layer.
        """
        if self._fast is not None:
            rows = torch.arange(len(h), device=h.device)
            return self._by_kernels(self._fast, h, rows, positions, lengths.to(torch.int32))
        if self._in_blocks is not None:
            rows, own = torch.arange(len(h)), torch.ones_like(positions)
            spans = AttentionSpans(rows, positions, positions, lengths - 1, own)
            return self._in_blocks.read(h, 0, len(self._layers), spans)
        parts = [(rows, rounded(read)) for rows, read in parts]
        read = max(read for _, read in parts)
        seen = torch.arange(read, device=h.device) < lengths.unsqueeze(1)
        place = Place(
            ropes_at(self._rope, positions.unsqueeze(1), self._shape),
            attention_masks(seen.unsqueeze(1), self._shape, h.dtype),
        )
        h = h.unsqueeze(1)
        slots = self._cache.rows(positions, read)
        for w, slot in zip(self._layers, slots, strict=True):
            h = layer(h, w, self._shape, place, slot, parts)
        return h.squeeze(1)

    def chains(
        self, h: Tensor, rows: Tensor, positions: Tensor, read: int, first: int, last: int
    ) -> Tensor:
        """Run tokens of any rows of the cache, several of some, which follow one another; each
        looks at what its row holds up to its own position.

        rows, positions: int64 [n], of each token.
        read: positions, more than any of `positions`; the kernels take no notice.
        first, last: through the layers first..last-1.
        """
        layers = slice(first, last)
        if self._fast is not None:
            lengths = (positions + 1).to(torch.int32)
            return self._by_kernels(self._fast, h, rows, positions, lengths, layers)
        shape = self._shape
        ropes = ropes_at(self._rope, positions, shape)
        seen = torch.arange(read, device=h.device) <= positions.unsqueeze(1)
        masks = attention_masks(seen.unsqueeze(1), shape, h.dtype)
        rooms = self._cache.all[layers].unbind(0)
        for w, room in zip(self._layers[layers], rooms, strict=True):
            qkv = queries_keys_values(h, w, shape, ropes).transpose(0, 1)  # [n, H + 2 KV, D]
            room[rows, :, positions] = qkv[:, shape.heads :]
            near = room[:, :, : rounded(read)].index_select(0, rows)
            keys, values = near.chunk(2, 1)
            a = attend(
                qkv[:, : shape.heads].unsqueeze(2),
                keys,
                values,
                masks[w.kind],
                shape.attention_scale,
                shape.score_cap,
                w.sinks,
            )
            h = after_attention(h, a.flatten(1), w, shape)
        return h

    def _by_kernels(
        self,
        run: ModuleType,
        h: Tensor,
        rows: Tensor,
        positions: Tensor,
        lengths: Tensor,
        layers: slice = slice(None),
    ) -> Tensor:
        shape, added = self._shape, None
        rooms = self._cache.all[layers].unbind(0)
        for w, room in zip(self._layers[layers], rooms, strict=True):
            assert w.attention_norm is not None and w.mlp_norm is not None
            x = run.add_norm(h, added, w.attention_norm, shape.norm_eps)
            qkv = linear(x, w.qkv, w.qkv_bias)
            queries = run.place(qkv, self._rope[0], rows, positions, room, shape)
            added = linear(run.attend(queries, room, rows, lengths), w.out)
            x = run.add_norm(h, added, w.mlp_norm, shape.norm_eps)
            added = linear(run.gated(linear(x, w.gate_up)), w.down)
        return h if added is None else h + added
