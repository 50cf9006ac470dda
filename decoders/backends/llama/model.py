"""Llama-shaped transformer in plain tensors: one layer as a function, weights as a record.

The same function serves decoding (cache, batch 1), batched collection (cache, padded batch) and the
training of exit adapters (no cache, gradients). Llama, SmolLM2, Mistral, Qwen2 and Qwen3 differ
only in sizes, in whether the q, k, v projections have biases, and in whether q and k are normed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cpp_kernels import has_tiles
from ..weights.file_blocks import FileBlocks
from ..weights.int4 import unsupported_reason
from ..weights.int8 import WIDE
from ..weights.packed import Matrix, dense, float32_pays, linear
from .kv import Slot
from .rope import KINDS, Rotation, kind_of, rotation_of

Rope = tuple[Tensor, Tensor]  # cos and sin
Part = tuple[slice, int]  # of a batch, and how many positions it reads
KEYS_ROUND = 128
ROWS_ROUND = 4
QUERIES = 128  # positions of a prompt whose attention is computed at once
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-shaped model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_eps: float
    rotation: Rotation


@dataclass(frozen=True)
class LayerWeights:
    """One layer; q, k, v are fused into one matrix, gate and up into another."""

    attention_norm: Tensor  # [d]
    qkv: Matrix  # [(H + 2 * KV) * D, d]
    out: Matrix  # [d, H * D]
    mlp_norm: Tensor  # [d]
    gate_up: Matrix  # [2 * f, d]
    down: Matrix  # [d, f]
    qkv_bias: Tensor | None = None  # [(H + 2 * KV) * D]
    head_norms: Tensor | None = None  # [2, D], of every query head and of every key head

    def tensors(self) -> dict[str, Matrix]:
        """Field name -> tensor or matrix, what is absent left out."""
        return {name: t for name, t in vars(self).items() if t is not None}


@dataclass(frozen=True)
class Weights:
    """A whole model. `head` holds the same numbers as `embedding` where the two are tied: the same
    tensor, or on a CPU a packed copy of it."""

    embedding: Tensor | FileBlocks  # [V, d]
    layers: list[LayerWeights]
    norm: Tensor  # [d]
    head: Matrix  # [V, d]
    tied: bool = False


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [..., d] over its root mean square, times weight [d].

    On a CPU as a layer norm of x next to -x, whose mean is 0 and whose variance is x's mean square:
    that is one kernel, PyTorch's own RMS norm ten (17 -> 9 us for one token). Rounded as
    transformers does, before the weight and after.
    """
    size = x.shape[-1]
    if x.device.type != "cpu":
        return F.rms_norm(x, (size,), weight, eps)
    both = torch.cat([x, -x], -1)
    return F.layer_norm(both, (2 * size,), None, None, eps)[..., :size] * weight


def turned(qkv: Tensor, head_norms: Tensor | None, shape: Shape, rope: Rope) -> Tensor:
    """qkv [..., T, (H + 2 KV) * D] -> as `queries_keys_values`."""
    heads = qkv.view(*qkv.shape[:-1], -1, shape.head_dim).transpose(-3, -2)
    if head_norms is not None:
        q, k, v = heads.tensor_split((shape.heads, shape.heads + shape.kv_heads), -3)
        q, k = (rms_norm(x, n, shape.norm_eps) for x, n in zip((q, k), head_norms, strict=True))
        heads = torch.cat([q, k, v], -3)
    return _rotate(heads, rope)


def added(h: Tensor, a: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h + a [..., d], and the same normed."""
    h = h + a
    return h, rms_norm(h, weight, eps)


def gated(gate_up: Tensor) -> Tensor:
    """[..., 2 f] -> [..., f]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    """x: [B, H + 2 KV, T, D]; the table's sine has its sign folded in."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


@dataclass(frozen=True)
class PointwiseOps:
    """Operations of a layer between its products; another implementation may stand for each."""

    normed: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    turned: Callable[[Tensor, Tensor | None, Shape, Rope], Tensor] = turned
    added: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = added
    gated: Callable[[Tensor], Tensor] = gated


POINTWISE = PointwiseOps()


def layer(
    h: Tensor,
    w: LayerWeights,
    shape: Shape,
    rope: Rope,
    mask: Tensor | None,
    slot: Slot | None = None,
    parts: Sequence[Part] | None = None,
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """One decoder layer. h: [B, T, d], or [T, d] where the slot is of one sequence.

    rope: of `all_heads`, broadcastable to [B, H + 2 KV, T, D].
    mask: what `attention_mask` made, None for causal attention from position 0.
    slot: where keys and values are written and read, None where there is no cache.
    parts: of the B, each with how many positions it reads; None where all read as many.
    pointwise: what runs between its products.

    Returns what has h's shape.
    """
    qkv = queries_keys_values(h, w, shape, rope, pointwise)
    return attended(h, qkv, w, shape, mask, slot, parts, pointwise)


def attended(
    h: Tensor,
    qkv: Tensor,
    w: LayerWeights,
    shape: Shape,
    mask: Tensor | None,
    slot: Slot | None = None,
    parts: Sequence[Part] | None = None,
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """The layer from its queries, keys and values on, as `queries_keys_values` gives them."""
    q, kv = qkv.tensor_split((shape.heads,), -3)
    if slot is None:
        k, v = kv.chunk(2, -3)
    else:
        slot.store(kv)
        k, v = slot.keys, slot.values
    if parts is None or mask is None:
        a = attend(q, k, v, mask)
    else:
        a = torch.cat([attend(q[p], k[p, :, :s], v[p, :, :s], mask[p, ..., :s]) for p, s in parts])
    return after_attention(h, a.transpose(1, 2).reshape(*h.shape[:-1], -1), w, shape, pointwise)


def after_attention(
    h: Tensor, a: Tensor, w: LayerWeights, shape: Shape, pointwise: PointwiseOps = POINTWISE
) -> Tensor:
    """The rest of a layer: h [..., d], what came into it, and a [..., H * D], what its attention
    gave."""
    h, x = pointwise.added(h, linear(a, w.out), w.mlp_norm, shape.norm_eps)
    return h + linear(pointwise.gated(linear(x, w.gate_up)), w.down)


RopeAndMask = tuple[Rope, Tensor | None]  # rotary table (`all_heads`) and mask of new positions


def chain_rope_and_mask(table: Rope, shape: Shape, start: int, t: int) -> RopeAndMask:
    """For t positions from `start` on; rotated by `rope_table`."""
    rope = rope_at(table, slice(start, start + t), shape)
    if start == 0 and t > 1:
        return rope, None
    # row i sees the cache and the new positions up to its own
    seen = torch.ones(t, start + t, dtype=torch.bool, device=table[0].device).tril(start)
    return rope, attention_mask(seen, shape, table[0].dtype)


def tree_rope_and_mask(table: Rope, shape: Shape, depths: Tensor, seen: Tensor) -> RopeAndMask:
    """For nodes of a tree: [T] the positions that they are rotated to, and bool [T, S], at what
    each looks."""
    return rope_at(table, depths, shape), attention_mask(seen, shape, table[0].dtype)


def through(
    h: Tensor,
    layers: Sequence[LayerWeights],
    shape: Shape,
    place: RopeAndMask,
    slots: Sequence[Slot],
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """h [T, d] through some layers; [T, d]. slots: one a layer, `KVCache.slots`."""
    for w, slot in zip(layers, slots, strict=True):
        h = layer(h, w, shape, *place, slot, pointwise=pointwise)
    return h


def queries_keys_values(
    h: Tensor, w: LayerWeights, shape: Shape, rope: Rope, pointwise: PointwiseOps = POINTWISE
) -> Tensor:
    """h [..., T, d] -> [..., H + 2 KV, T, D], queries and keys turned to their positions."""
    x = pointwise.normed(h, w.attention_norm, shape.norm_eps)
    return pointwise.turned(linear(x, w.qkv, w.qkv_bias), w.head_norms, shape, rope)


def attention_mask(allowed: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    """allowed: bool [T, S] or [B, T, S], True where a query may look -> [B or 1, 1, rows, S'].

    Added to the scores. The query heads that share a key head are rows of it (`attend`). Rows are
    repeated up to a multiple of ROWS_ROUND, of which the kernel sums fewer in another order, and
    columns up to a multiple of KEYS_ROUND masked. So a token's scores are summed in one order
    however many tokens are read with it, and its logits are the same to the last bit (on a CPU in
    bfloat16: docs/lossless.md). A prompt's are computed in blocks and left as they are.
    """
    allowed = allowed if allowed.dim() == 3 else allowed.unsqueeze(0)
    b, t, s = allowed.shape
    mask = torch.full((b, 1, t, rounded(s)), -torch.inf, dtype=dtype, device=allowed.device)
    mask[:, 0, :, :s].masked_fill_(allowed, 0.0)
    rows = t * (shape.heads // shape.kv_heads)
    if t <= QUERIES // 2:
        rows = -(-rows // ROWS_ROUND) * ROWS_ROUND
    return _repeated(mask, rows)


def _repeated(lines: Tensor, rows: int) -> Tensor:
    """[B, H, T, D] -> [B, H, rows, D], the lines over and over."""
    return lines.repeat(1, 1, -(-rows // lines.shape[2]), 1)[:, :, :rows]


def rounded(positions: int) -> int:
    """Capacity of a cache that holds this number of positions."""
    return -(-positions // KEYS_ROUND) * KEYS_ROUND


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q: [B, H, T, D], or [H, T, D] for a B of 1; k and v: [B, KV, S, D] -> [B, H, T, D]; mask as
    in `layer`."""
    b, kv_heads = k.shape[:2]
    heads, t, d = q.shape[-3:]
    long = t > QUERIES // 2 and q.dtype == torch.bfloat16 and q.device.type == "cpu"
    if long and not has_tiles():
        q = q.reshape(b, kv_heads, -1, t, d)
        if not float32_pays(q):
            return _in_blocks(q, k, v, mask)
        added = None if mask is None else mask.float()
        return _in_blocks(q.float(), k.float(), v.float(), added).to(q.dtype)
    if long or mask is None:
        q, grouped = q.reshape(b, heads, t, d), heads != kv_heads
        lines = None if mask is None else mask[:, :, :t]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=lines, is_causal=mask is None, enable_gqa=grouped
        )
    # As rows of their key head, query heads read the keys once, not once each: on a CPU 5 times
    # faster for one token (docs/notes/performance.md).
    own = heads // kv_heads * t
    rows = q.reshape(b, kv_heads, own, d)
    if mask.shape[-2] > rows.shape[-2]:
        rows = _repeated(rows, mask.shape[-2])
    if t > WIDE and float32_pays(rows):
        rows, k, v, mask = rows.float(), k.float(), v.float(), mask.float()
    a = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask)
    return a[:, :, :own].reshape(b, heads, t, d).to(q.dtype)


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`attend` for a prompt, as products of QUERIES positions with what they may see: on a CPU
    without tiles (AMX) PyTorch's attention kernel multiplies bfloat16 at a tenth of the speed of
    its matrix products. With them it is 2 to 3 times faster than this.

    q: [B, KV, H / KV, T, D], k and v: [B, KV, S, D]; the T positions are the last of the S.
    """
    b, kv_heads, group, t, d = q.shape
    s = k.shape[2]
    keys, values = k.reshape(-1, s, d), v.reshape(-1, s, d)
    made = torch.empty_like(q)
    later = q.new_full((QUERIES, QUERIES), -torch.inf).triu(1)
    for first in range(0, t, QUERIES):
        last = min(first + QUERIES, t)
        n, end = last - first, s - t + last
        rows = q[:, :, :, first:last].reshape(-1, group * n, d) * d**-0.5
        scores = torch.bmm(rows, keys[:, :end].transpose(1, 2))
        seen = scores.view(b, kv_heads, group, n, end)
        if mask is None:
            seen[..., first:] += later[:n, :n]
        else:
            seen += mask.view(-1, 1, group, t, s)[:, :, :, first:last, :end]
        a = torch.bmm(scores.softmax(-1), values[:, :end])
        made[:, :, :, first:last] = a.view(b, kv_heads, group, n, d)
    return made.view(b, -1, t, d)


def rope_at(table: Rope, at: Tensor | slice, shape: Shape) -> Rope:
    """The rotary table at some positions, as `layer` takes it."""
    return all_heads((table[0][at], table[1][at]), shape)


def all_heads(rope: Rope, shape: Shape) -> Rope:
    """cos and sin [..., T, D] -> [..., H + 2 KV, T, D], those of the values 1 and 0: then queries,
    keys and values are rotated at once, without being cut apart."""
    cos, sin = (part.unsqueeze(-3) for part in rope)
    turned = [*cos.shape[:-3], shape.heads + shape.kv_heads, *cos.shape[-2:]]
    still = torch.ones_like(cos).expand(*cos.shape[:-3], shape.kv_heads, *cos.shape[-2:])
    return (
        torch.cat([cos.expand(turned), still], -3),
        torch.cat([sin.expand(turned), torch.zeros_like(still)], -3),
    )


def skip_layer(h: Tensor, w: LayerWeights, shape: Shape, rope: Rope, slot: Slot) -> None:
    """Write the keys and values of a layer that h [T, d] does not go through, as if it had come
    to it unchanged (Schuster et al., Confident Adaptive Language Modeling, section 3.1)."""
    qkv = queries_keys_values(h, w, shape, rope)
    slot.store(qkv[shape.heads :])  # a packed matrix cannot be cut: q is for nothing


def rope_table(shape: Shape, device: torch.device, dtype: torch.dtype) -> Rope:
    """cos and sin, each [context, D]; angles in float32, as transformers computes them. The first
    half of sin is negated: rotating is x * cos + roll(x, D / 2) * sin."""
    frequencies = torch.tensor(shape.rotation.frequencies).to(device)
    angles = torch.outer(torch.arange(shape.context, device=device).float(), frequencies)
    cos, sin = ((part * shape.rotation.scale).to(dtype) for part in (angles.cos(), angles.sin()))
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def unsupported(config: dict[str, Any]) -> str | None:
    """Why a transformers config does not fit this file, or None where it does."""
    architecture = (config.get("architectures") or ["none named"])[0]
    if architecture not in ARCHITECTURES:
        return f"architecture {architecture} is not one of {', '.join(ARCHITECTURES)}"
    if kind_of(config) not in KINDS:
        return f"rope type {kind_of(config)} is not supported"
    slides = config.get("use_sliding_window", not architecture.startswith("Qwen"))
    if config.get("sliding_window") and slides:
        return "sliding-window attention is not supported"
    if config.get("hidden_act", "silu") != "silu":
        return f"activation {config['hidden_act']} is not supported"
    if config.get("attention_bias") and architecture != "Qwen2ForCausalLM":
        return "biases in the attention's output projection are not supported"
    if config.get("mlp_bias"):
        return "MLP biases are not supported"
    if config.get("quantization_config"):
        return "quantised checkpoints are not supported"
    return None


def shape_of(config: dict[str, Any]) -> Shape:
    """Sizes from a transformers `config.json` as a dict."""
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        context=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        rotation=rotation_of(config),
    )


def not_int4(config: dict[str, Any]) -> str | None:
    """Why this model's matrices cannot be rounded to int4, or None where they can."""
    shape = shape_of(config)
    return unsupported_reason(
        {
            "hidden size": shape.hidden,
            "intermediate size": config["intermediate_size"],
            "query size": shape.heads * shape.head_dim,
            "key size": shape.kv_heads * shape.head_dim,
        }
    )


def count(weights: Weights) -> int:
    """Parameters, a tied head counted once."""
    total = weights.embedding.numel() + weights.norm.numel()
    if not weights.tied:
        total += weights.head.numel()
    return total + count_layers(weights.layers)


def count_layers(layers: Sequence[LayerWeights]) -> int:
    """Parameters of these layers."""
    return sum(t.numel() for one in layers for t in one.tensors().values())


def moved(weights: LayerWeights, device: torch.device, dtype: torch.dtype) -> LayerWeights:
    """The same layer elsewhere or in another dtype."""
    return LayerWeights(**{k: dense(t).to(device, dtype) for k, t in weights.tensors().items()})
