"""A model's narrow passes by fused kernels: five launches a layer instead of thirty.

At batch 1 a recorded pass over a small model is bound by how many kernels it has, not by the bytes
they read. `FusedLayers` runs the same layers as `llama.model.layer` by the Triton kernels of
`fused_kernels.py`, for a chain of up to `widest` tokens whose place is read from a tensor on the
device: one recording serves every position of the sequence.

Its sums differ from PyTorch's in their order alone, and not from one width to another.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..llama.kv import KVCache
from ..llama.model import LayerWeights, RopeTables, Weights, not_as_llama
from ..llama.shape import Shape
from ..weights.int4 import GROUP, Int4Weight
from ..weights.int8 import Int8Weight
from ..weights.packed import Matrix, dense

if TYPE_CHECKING:
    from .fused_launch import Launch, PreparedWeight


def unsupported_reason(shape: Shape, weights: Weights) -> str | None:
    """Why a model cannot run by these kernels, in a few words; None where it can."""
    first, d = weights.layers[0], shape.head_dim
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if weights.embedding.device.type != "cuda":
        return f"the kernels are for CUDA, not for {weights.embedding.device.type}"
    if weights.embedding.dtype != torch.bfloat16:
        return "the kernels are for bfloat16, int8 and int4"
    strange = not_as_llama(shape, weights.layers)
    if strange is not None:
        return strange
    if d < 16 or d & (d - 1) or d > 256:
        return f"its heads of {d} are no power of two from 16 to 256"
    sizes = (shape.hidden, shape.heads * d, gate_width(first, shape))
    if any(size % 16 for size in sizes):
        return f"its sizes {', '.join(map(str, sizes))} are not all multiples of 16"
    if isinstance(first.out, Int4Weight) and any(size % GROUP for size in sizes):
        return f"its sizes {', '.join(map(str, sizes))} are not all multiples of {GROUP}"
    return None


@cache
def broken(device: torch.device) -> str | None:
    """Why no kernel runs on this device though it should, or None: Triton compiles when a kernel is
    first launched, and wants a driver and a C compiler that fit it."""
    x = torch.ones(1, 16, dtype=torch.bfloat16, device=device)
    try:
        launcher(device).normed(x, x[0], 0.0, made := torch.zeros_like(x))
        return None if bool((made == 1).all()) else "a kernel's result is wrong"
    except Exception as error:  # of Triton's many kinds; each means that there are no kernels
        return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


def gate_width(w: LayerWeights, shape: Shape) -> int:
    """f, the outputs of the gate."""
    return w.down.numel() // shape.hidden


def launcher(device: torch.device) -> Launch:
    """How kernels are launched on this device: from Hopper on, each while the last one ends."""
    from .fused_launch import SHARED, Launch

    if device.type != "cuda":
        return Launch()
    capability = (0, 0) if torch.version.hip else torch.cuda.get_device_capability(device)
    properties = torch.cuda.get_device_properties(device)
    held = getattr(properties, "shared_memory_per_block_optin", SHARED)  # an AMD GPU does not say
    return Launch(capability >= (9, 0), capability >= (8, 0), min(held, SHARED))


def kept(weight: Matrix) -> PreparedWeight:
    """A matrix [N, K] as the kernels read it; an int4 one gets another layout, others stay."""
    from .fused_launch import DENSE, INT4, INT8, PreparedWeight

    if isinstance(weight, Int4Weight):
        q = weight.steps()  # [N, K] from 0 to 15
        outputs, inputs = q.shape
        more = -inputs % (4 * GROUP)
        q = F.pad(q.to(torch.uint8), (0, more)).view(outputs, -1, 4, 4, 8).transpose(2, 3)
        q = q.reshape(outputs, -1, 4, 2).transpose(2, 3)  # every other one of eight, then the rest
        low, high = q.reshape(outputs, -1, 2).unbind(2)
        values = (high << 4 | low).contiguous().view(torch.int32)
        grid = F.pad(weight.grid.transpose(0, 1), (0, 0, 0, more // GROUP))
        scale = grid.contiguous().view(torch.int32).squeeze(-1)
        return PreparedWeight(INT4, outputs, inputs, values, scale)
    if isinstance(weight, Int8Weight):
        outputs, inputs = weight.values.shape
        return PreparedWeight(INT8, outputs, inputs, weight.values, weight.scale)
    weight = dense(weight).detach().contiguous()
    outputs, inputs = weight.shape
    return PreparedWeight(DENSE, outputs, inputs, weight, weight)


class FusedLayers:
    """Recorded layers of one sequence, by fused kernels. States and logits lie in memory that the
    next call of the same method writes to."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        rope: RopeTables,
        cache: KVCache,
        widest: int,
        launch: Launch | None = None,
    ) -> None:
        from .fused_launch import Scratch, span_of

        like = dense(weights.embedding)
        self._shape, (self._rope,) = shape, rope
        self._norm, self._head = weights.norm, kept(weights.head)
        self._launch = launch or launcher(like.device)
        self._layers = [  # and of each its part of the cache [2 KV, C, D]
            (w, kept(w.qkv), kept(w.out), kept(w.gate_up), kept(w.down), room[0])
            for w, room in zip(weights.layers, cache.all, strict=True)
        ]
        heads, d = shape.heads, shape.head_dim
        self._q = like.new_empty(widest, heads, d)
        self._attended = like.new_empty(widest, heads, d)
        self._opened = like.new_empty(widest, gate_width(weights.layers[0], shape))
        self._states = like.new_empty(widest, shape.hidden)
        self._logits = like.new_empty(widest, shape.vocab)
        span = span_of(d, self._launch.shared)
        self._scratch = Scratch(widest, heads, shape.kv_heads, d, cache.capacity, span, like)

    def through(self, h: Tensor, first: int, last: int, start: Tensor, behind: int) -> Tensor:
        t, eps, launch = len(h), self._shape.norm_eps, self._launch
        q, attended, opened = self._q[:t], self._attended[:t], self._opened[:t]
        made = self._states[:t]
        for w, qkv, out, gate_up, down, room in self._layers[first:last]:
            assert w.attention_norm is not None
            launch.queries_keys_values(
                h, w.attention_norm, eps, qkv, w.qkv_bias, self._rope, start, behind, room, q
            )
            launch.attend(q, room, start, behind, self._scratch, attended)
            launch.added(attended.view(t, -1), out, h, made)
            launch.gated(made, w.mlp_norm, eps, gate_up, opened)
            launch.added(opened, down, made, made)
            h = made
        return h

    def normed(self, h: Tensor, out: Tensor) -> Tensor:
        self._launch.normed(h, self._norm, self._shape.norm_eps, out)
        return out

    def logits(self, normed: Tensor) -> Tensor:
        made = self._logits[: len(normed)]
        self._launch.added(normed, self._head, None, made)
        return made
