"""Decoder-only transformer in plain tensors: one layer as a function, weights as a record.

The same function serves decoding (cache, batch 1), batched collection (cache, padded batch) and the
training of exit adapters (no cache, gradients). What differs between families is in `Shape`, in
which of a layer's weights there are, and in its kind of attention; families.py fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..families import CLAMPED, GAIN, LIMIT
from ..weights.file_blocks import FileBlocks
from ..weights.packed import Matrix, linear, part_of, rows_of
from .attention import attend, attention_masks
from .eight_bits import decoded
from .kv import Slot
from .shape import Shape

Rope = tuple[Tensor, Tensor]  # cos and sin
RopeTables = Sequence[Rope]  # of the whole context, one for each of `Shape.kinds`
Part = tuple[slice, int]  # of a batch, and how many positions it reads


@dataclass(frozen=True)
class LayerWeights:
    """One layer; q, k, v are fused into one matrix, gate and up into another.

    attention_norm, mlp_norm: [d], of what attention and the MLP read.
    head_norms: [2, D], of every query head and of every key head; or [(H + KV) * D], of all queries
        and of all keys at once.
    attention_out_norm, mlp_out_norm: [d], of what attention and the MLP add.
    router: [E, d], of a layer whose gate_up and down are those of E MLPs below each other; its
        biases, and theirs, are of each.
    sinks: [H], a head's score of nothing: part of every softmax's sum (OpenAI, gpt-oss-120b &
        gpt-oss-20b Model Card).
    kind: its number in `Shape.kinds`.
    """

    attention_norm: Tensor | None
    qkv: Matrix  # [(H + 2 * KV) * D, d]
    out: Matrix  # [d, H * D]
    mlp_norm: Tensor | None
    gate_up: Matrix  # [2 * f, d]
    down: Matrix  # [d, f]
    qkv_bias: Tensor | None = None  # [(H + 2 * KV) * D]
    head_norms: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None
    router: Tensor | None = None
    out_bias: Tensor | None = None  # [d]
    sinks: Tensor | None = None
    router_bias: Tensor | None = None  # [E]
    gate_up_bias: Tensor | None = None  # [E, 2 * f]
    down_bias: Tensor | None = None  # [E, d]
    kind: int = 0

    def tensors(self) -> dict[str, Matrix]:
        """Field name -> tensor or matrix, what is absent left out."""
        return {name: t for name, t in vars(self).items() if t is not None and name != "kind"}


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
    that is one kernel, PyTorch's own RMS norm ten (17 -> 9 us for one token). Rounded before the
    weight and after, as transformers' Llama does; its Gemma and OLMo round once.
    """
    size = x.shape[-1]
    if x.device.type != "cpu":
        return F.rms_norm(x, (size,), weight, eps)
    both = torch.cat([x, -x], -1)
    return F.layer_norm(both, (2 * size,), None, None, eps)[..., :size] * weight


def turned(qkv: Tensor, head_norms: Tensor | None, shape: Shape, rope: Rope) -> Tensor:
    """qkv [..., T, (H + 2 KV) * D] -> as `queries_keys_values`."""
    if head_norms is not None and head_norms.dim() == 1:
        sizes = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = torch.split(qkv, sizes, -1)
        norms = torch.split(head_norms, sizes[:2])
        q, k = (rms_norm(x, n, shape.norm_eps) for x, n in zip((q, k), norms, strict=True))
        qkv, head_norms = torch.cat([q, k, v], -1), None
    heads = qkv.view(*qkv.shape[:-1], -1, shape.head_dim).transpose(-3, -2)
    if head_norms is not None:
        q, k, v = heads.tensor_split((shape.heads, shape.heads + shape.kv_heads), -3)
        q, k = (rms_norm(x, n, shape.norm_eps) for x, n in zip((q, k), head_norms, strict=True))
        heads = torch.cat([q, k, v], -3)
    cos, sin = rope  # with its sign folded in
    return torch.addcmul(heads * cos, heads.roll(shape.head_dim // 2, -1), sin)


def added(h: Tensor, a: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h + a [..., d], and the same normed."""
    h = h + a
    return h, rms_norm(h, weight, eps)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """[..., 2 f] -> [..., f]."""
    gate, up = gate_up.chunk(2, -1)
    if activation == CLAMPED:
        gate = gate.clamp(max=LIMIT)
        return gate * torch.sigmoid(GAIN * gate) * (up.clamp(-LIMIT, LIMIT) + 1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def experts(x: Tensor, w: LayerWeights, router: Tensor, shape: Shape) -> Tensor:
    """x [..., d] -> [..., d], of each token its likeliest experts' answers, by their shares, added
    in the order of experts (Shazeer et al., Outrageously Large Neural Networks, section 2.1)."""
    assert shape.experts is not None
    rows, count = x.reshape(-1, x.shape[-1]), shape.experts.count
    wide = torch.promote_types(x.dtype, torch.float32)
    bias = None if w.router_bias is None else w.router_bias.to(wide)
    chances = F.linear(rows.to(wide), router.to(wide), bias).softmax(-1)
    shares, taken = chances.topk(shape.experts.taken)
    if shape.experts.whole:
        shares = shares / shares.sum(-1, keepdim=True)
    made = torch.zeros_like(rows, dtype=wide)
    for expert in sorted(set(taken.flatten().tolist())):
        token, nth = torch.where(taken == expert)
        gate_up, down = (part_of(each, expert, count) for each in (w.gate_up, w.down))
        of_gate_up, of_down = (
            None if each is None else each[expert] for each in (w.gate_up_bias, w.down_bias)
        )
        wider = linear(rows[token], gate_up, of_gate_up)
        answer = linear(gated(wider, shape.activation), down, of_down)
        made.index_add_(0, token, answer.to(wide) * shares[token, nth].unsqueeze(-1))
    return made.to(x.dtype).view_as(x)


@dataclass(frozen=True)
class PointwiseOps:
    """Operations of a layer between its products; another implementation may stand for each."""

    normed: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    turned: Callable[[Tensor, Tensor | None, Shape, Rope], Tensor] = turned
    added: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = added
    gated: Callable[[Tensor, str], Tensor] = gated
    experts: Callable[[Tensor, LayerWeights, Tensor, Shape], Tensor] = experts


POINTWISE = PointwiseOps()


@dataclass(frozen=True)
class Place:
    """Rotation and sight of new positions, for each of `Shape.kinds`.

    ropes: rotary tables, of `all_heads`, broadcastable to [B, H + 2 KV, T, D].
    masks: what `attention_mask` made; None for causal attention from position 0.
    """

    ropes: Sequence[Rope]
    masks: Sequence[Tensor | None]

    def read(self, end: int) -> int:
        """Positions of the cache that a pass up to `end` reads."""
        return next((mask.shape[-1] for mask in self.masks if mask is not None), end)


def layer(
    h: Tensor,
    w: LayerWeights,
    shape: Shape,
    place: Place,
    slot: Slot | None = None,
    parts: Sequence[Part] | None = None,
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """One decoder layer. h: [B, T, d], or [T, d] where the slot is of one sequence.

    slot: where keys and values are written and read, None where there is no cache.
    parts: of the B, each with how many positions it reads; None where all read as many.
    pointwise: what runs between its products.

    Returns what has h's shape.
    """
    qkv = queries_keys_values(h, w, shape, place.ropes, pointwise)
    return attended(h, qkv, w, shape, place.masks[w.kind], slot, parts, pointwise)


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
    if slot is not None:
        slot.store(kv)
    if slot is None or slot.keys is None or slot.values is None:
        k, v = kv.chunk(2, -3)
    else:
        k, v = slot.keys, slot.values
    if k.dtype == torch.int8:
        k, v = (decoded(kept, shape.head_dim, q.dtype) for kept in (k, v))
    if mask is None:
        k, v = (x[..., : q.shape[-2], :] for x in (k, v))
    else:
        mask = mask[..., : k.shape[-2]]
    how = shape.attention_scale, shape.score_cap, w.sinks
    if parts is None or mask is None:
        a = attend(q, k, v, mask, *how)
    else:
        a = torch.cat(
            [attend(q[p], k[p, :, :s], v[p, :, :s], mask[p, ..., :s], *how) for p, s in parts]
        )
    return after_attention(h, a.transpose(1, 2).reshape(*h.shape[:-1], -1), w, shape, pointwise)


def after_attention(
    h: Tensor, a: Tensor, w: LayerWeights, shape: Shape, pointwise: PointwiseOps = POINTWISE
) -> Tensor:
    """The rest of a layer: h [..., d], what came into it, and a [..., H * D], what its attention
    gave."""
    more = linear(a, w.out, w.out_bias)
    if w.attention_out_norm is not None:
        more = pointwise.normed(more, w.attention_out_norm, shape.norm_eps)
    if w.mlp_norm is None:
        x = h = h + more
    else:
        h, x = pointwise.added(h, more, w.mlp_norm, shape.norm_eps)
    if w.router is None:
        more = linear(pointwise.gated(linear(x, w.gate_up), shape.activation), w.down)
    else:
        more = pointwise.experts(x, w, w.router, shape)
    if w.mlp_out_norm is not None:
        more = pointwise.normed(more, w.mlp_out_norm, shape.norm_eps)
    return h + more


def chain_place(tables: RopeTables, shape: Shape, start: int, t: int) -> Place:
    """The place of t positions from `start` on."""
    ropes, (first, _) = ropes_at(tables, slice(start, start + t), shape), tables[0]
    causal = [start == 0 and t > 1 and not 0 < kind.window < t for kind in shape.kinds]
    if all(causal):
        return Place(ropes, [None] * len(ropes))
    # row i sees the cache and the new positions up to its own
    seen = torch.ones(t, start + t, dtype=torch.bool, device=first.device).tril(start)
    masks = attention_masks(seen, shape, first.dtype)
    return Place(ropes, [None if c else mask for c, mask in zip(causal, masks, strict=True)])


def tree_place(tables: RopeTables, shape: Shape, depths: Tensor, seen: Tensor) -> Place:
    """The place of nodes of a tree. depths: [T], the positions that they are rotated to. seen: bool
    [T, S], at what each looks."""
    masks = attention_masks(seen, shape, tables[0][0].dtype)
    return Place(ropes_at(tables, depths, shape), masks)


def through(
    h: Tensor,
    layers: Sequence[LayerWeights],
    shape: Shape,
    place: Place,
    slots: Sequence[Slot],
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """h [T, d] through some layers; [T, d]. slots: one a layer, `KVCache.slots`."""
    for w, slot in zip(layers, slots, strict=True):
        h = layer(h, w, shape, place, slot, pointwise=pointwise)
    return h


def queries_keys_values(
    h: Tensor,
    w: LayerWeights,
    shape: Shape,
    ropes: Sequence[Rope],
    pointwise: PointwiseOps = POINTWISE,
) -> Tensor:
    """h [..., T, d] -> [..., H + 2 KV, T, D], queries and keys turned to their positions."""
    x = h
    if w.attention_norm is not None:
        x = pointwise.normed(h, w.attention_norm, shape.norm_eps)
    return pointwise.turned(linear(x, w.qkv, w.qkv_bias), w.head_norms, shape, ropes[w.kind])


def ropes_at(tables: RopeTables, at: Tensor | slice, shape: Shape) -> list[Rope]:
    """Rotary tables at some positions, as of `Place`."""
    return [all_heads((cos[at], sin[at]), shape) for cos, sin in tables]


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


def skip_layer(h: Tensor, w: LayerWeights, shape: Shape, place: Place, slot: Slot) -> None:
    """Write the keys and values of a layer that h [T, d] does not go through, as if it had come
    to it unchanged (Schuster et al., Confident Adaptive Language Modeling, section 3.1)."""
    qkv = queries_keys_values(h, w, shape, place.ropes)
    slot.store(qkv[shape.heads :])  # a packed matrix cannot be cut: q is for nothing


def rope_tables(shape: Shape, device: torch.device, dtype: torch.dtype) -> list[Rope]:
    """Cosines and sines of every kind of layer, each [context, D]; angles in float32, as
    transformers computes them. The first half of sin is negated: rotating is x * cos +
    roll(x, D / 2) * sin."""
    made: list[Rope] = []
    for kind in shape.kinds:
        frequencies = torch.tensor(kind.rotation.frequencies).to(device)
        angles = torch.outer(torch.arange(shape.context, device=device).float(), frequencies)
        scale = torch.where(frequencies > 0, kind.rotation.scale, 1.0)
        cos, sin = ((part * scale).to(dtype) for part in (angles.cos(), angles.sin()))
        made.append((torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)))
    return made


def embedded(ids: Tensor, embedding: Tensor | FileBlocks, shape: Shape) -> Tensor:
    """ids [...] -> [..., d], what the first layer reads."""
    rows = rows_of(embedding, ids)
    return rows if shape.embedding_scale == 1.0 else rows * shape.embedding_scale


def logits_of(states: Tensor, head: Matrix, shape: Shape) -> Tensor:
    """[..., V] of final states [..., d]."""
    return capped(linear(states, head), shape.logit_cap)


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Bend logits to stay below a soft cap; None leaves them as they are."""
    return logits if cap is None else (logits / cap).tanh() * cap


def not_as_llama(shape: Shape, layers: Sequence[LayerWeights]) -> str | None:
    """A reason why layers are not Llama's, biases of queries, keys and values aside; None where
    they are."""
    if shape.experts is not None:
        return "its layers choose among experts"
    if any(kind.window for kind in shape.kinds):
        return "its attention has windows"
    if any(w.head_norms is not None for w in layers):
        return "its query heads are normed"
    scales = shape.attention_scale or shape.embedding_scale != 1.0
    more = shape.activation != "silu" or scales or shape.score_cap or shape.logit_cap
    others = (part for w in layers for part in (w.attention_out_norm, w.out_bias, w.sinks))
    more = more or any(part is not None for part in others)
    if more or any(w.attention_norm is None for w in layers):
        return "its layers are not Llama's"
    return None


def count(weights: Weights) -> int:
    """Parameters, a tied head counted once."""
    total = weights.embedding.numel() + weights.norm.numel()
    if not weights.tied:
        total += weights.head.numel()
    return total + count_layers(weights.layers)


def count_layers(layers: Sequence[LayerWeights]) -> int:
    """Parameters of these layers."""
    return sum(t.numel() for one in layers for t in one.tensors().values())
