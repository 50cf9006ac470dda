"""Tensors that the files of a model must hold for the native backend to run it."""

from __future__ import annotations

from typing import Any

from ...common.tensor_files import Shape
from ..families import Experts, Family, family_of
from .shape import Shape as Model
from .shape import shape_of


def needed(config: dict[str, Any], joined: bool = False) -> dict[str, Shape]:
    """Names, without a leading `model.`, and shapes, of a config that `unsupported` lets pass.

    joined: a layer's experts in one tensor, as in GGUF files.
    """
    shape, family = shape_of(config), family_of(config)
    layer = of_layer(shape, int(config["intermediate_size"]), family)
    if shape.experts is not None:
        layer = {name: each for name, each in layer.items() if not name.startswith("mlp.")}
        layer |= _of_experts(shape.experts, shape.hidden, family, joined)
    d = shape.hidden
    whole: dict[str, Shape] = {"embed_tokens.weight": (shape.vocab, d), "norm.weight": (d,)}
    if not config.get("tie_word_embeddings", family.tied):
        whole["lm_head.weight"] = (shape.vocab, d)
    if not joined:
        layer = {family.saved(name): each for name, each in layer.items()}
    for index in range(shape.layers):
        whole |= {f"layers.{index}.{name}": each for name, each in layer.items()}
    return whole


def of_layer(shape: Model, intermediate: int, family: Family) -> dict[str, Shape]:
    """Names and shapes of one layer's. Biases and norms are those of the family, as in
    transformers."""
    d, f = shape.hidden, intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = (q + 2 * kv,) if family.fused else (q, kv, kv)
    layer: dict[str, Shape] = {name: (d,) for name in vars(family.norms).values() if name}
    layer |= {f"{name}.weight": (n, d) for name, n in zip(family.qkv, rows, strict=True)}
    layer |= {
        "self_attn.o_proj.weight": (d, q),
        **{f"{name}.weight": (2 * f // len(family.gate_up), d) for name in family.gate_up},
        "mlp.down_proj.weight": (d, f),
    }
    if family.biased == "all":
        layer["self_attn.o_proj.bias"] = (d,)
    if family.sinks:
        layer["self_attn.sinks"] = (shape.heads,)
    if family.biased is not None:
        layer |= {f"{name}.bias": (n,) for name, n in zip(family.qkv, rows, strict=True)}
    if family.head_norms is not None:
        sizes = (q, kv) if family.head_norms == "all" else (shape.head_dim, shape.head_dim)
        layer |= {f"self_attn.{x}_norm.weight": (n,) for x, n in zip("qk", sizes, strict=True)}
    return layer


def _of_experts(experts: Experts, d: int, family: Family, joined: bool) -> dict[str, Shape]:
    count, f = experts.count, experts.width
    sizes = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
    made: dict[str, Shape] = {"mlp.gate.weight": (count, d)}
    if family.biased == "all":
        made["mlp.gate.bias"] = (count,)
    if joined:
        made |= {f"mlp.experts.{n}.weight": (count, *s) for n, s in sizes.items()}
        biases = {f"mlp.experts.{n}.bias": (count, s[0]) for n, s in sizes.items()}
        return made | (biases if family.biased == "all" else {})
    if family.joint:
        of = {"gate_up_proj": (d, 2 * f), "down_proj": (f, d)}
        made |= {f"mlp.experts.{n}": (count, *s) for n, s in of.items()}
        return made | {f"mlp.experts.{n}_bias": (count, s[1]) for n, s in of.items()}
    numbers = range(count)
    return made | {f"mlp.experts.{i}.{n}.weight": s for i in numbers for n, s in sizes.items()}
