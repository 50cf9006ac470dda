"""Rotary positions: how fast each pair of dimensions turns, by transformers' own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Kinds whose frequencies do not change with the length; longrope's do beyond what a model was first
# trained for, which is as far as it is read here.
KINDS = ("default", "linear", "llama3", "yarn", "longrope")

IN_PART = "partial_rotary_factor"
THETA = 10_000.0  # where a config names none
SIZES = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class Rotation:
    """frequencies: radians a position, of each of the D / 2 pairs; 0 for those that stand still.
    scale: of cosines and sines of the others.
    """

    frequencies: tuple[float, ...]
    scale: float


def kind_of(rope: dict[str, Any]) -> str:
    """The `rope_type` of a config's `rope_parameters`, under any of its names."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def turning_of(rope: dict[str, Any], size: int) -> int:
    """How many of a head's dimensions turn, the first ones of a checkpoint's."""
    return int(size * rope.get(IN_PART, 1.0))


def pairs_apart(size: int, turning: int) -> list[int]:
    """A checkpoint's dimensions of a head in the order in which dimensions i and i + size / 2 turn
    together: pairs that turn, half of those that stand still behind the first of each."""
    half, still = turning // 2, (turning + size) // 2
    return [
        *range(half),
        *range(turning, still),
        *range(half, turning),
        *range(still, size),
    ]


def rotation_of(config: dict[str, Any]) -> Rotation:
    """The rotation that transformers' Llama makes of a config, of a kind among KINDS. The default
    kind is computed here: importing transformers' models takes seconds."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or THETA
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if kind_of(rope) == "default":
        return _among(size, _default(theta, turning_of(rope, size)), 1.0)
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {name: config[name] for name in SIZES if name in config}
    like = LlamaConfig.from_dict(sizes | {"rope_parameters": rope | {"rope_theta": theta}})
    rotary = LlamaRotaryEmbedding(like)
    return _among(size, rotary.inv_freq.tolist(), float(rotary.attention_scaling))


def _default(theta: float, size: int) -> list[float]:
    """theta^(-2i / D) radians a position (Su et al., RoFormer, section 3.2.2)."""
    import torch

    turns: list[float] = (1.0 / theta ** (torch.arange(0, size, 2).float() / size)).tolist()
    return turns


def _among(size: int, turns: list[float], scale: float) -> Rotation:
    return Rotation((*turns, *[0.0] * (size // 2 - len(turns))), scale)
