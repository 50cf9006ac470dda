"""Rotary positions: how fast each pair of dimensions turns, by transformers' own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KINDS = ("default", "linear", "llama3", "yarn")  # whose frequencies do not change with the length

THETA = 10_000.0  # where a config names none
SIZES = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class Rotation:
    """frequencies: radians a position, of each of the D / 2 pairs.
    scale: of cosines and sines.
    """

    frequencies: tuple[float, ...]
    scale: float


def kind_of(rope: dict[str, Any]) -> str:
    """The `rope_type` of a config's `rope_parameters`, under any of its names."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def rotation_of(config: dict[str, Any]) -> Rotation:
    """The rotation that transformers' Llama makes of a config, of a kind among KINDS. The default
    kind is computed here: importing transformers' models takes seconds."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or THETA
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if kind_of(rope) == "default":
        return _default(theta, size)
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {name: config[name] for name in SIZES if name in config}
    like = LlamaConfig.from_dict(sizes | {"rope_parameters": rope | {"rope_theta": theta}})
    rotary = LlamaRotaryEmbedding(like)
    return Rotation(tuple(rotary.inv_freq.tolist()), float(rotary.attention_scaling))


def _default(theta: float, size: int) -> Rotation:
    """theta^(-2i / D) radians a position (Su et al., RoFormer, section 3.2.2)."""
    import torch

    turns = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float) / size)
    return Rotation(tuple(turns.tolist()), 1.0)
