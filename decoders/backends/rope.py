"""Rotary positions: how fast each pair of dimensions turns, by transformers' own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KINDS = ("default", "linear", "llama3", "yarn")  # whose frequencies do not change with the length


@dataclass(frozen=True)
class Rotation:
    """frequencies: radians a position, of each of the D / 2 pairs.
    scale: of cosines and sines.
    """

    frequencies: tuple[float, ...]
    scale: float


def kind_of(config: dict[str, Any]) -> str:
    """The `rope_type` of a transformers `config.json` as a dict, under any of its names."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(rope.get("rope_type", rope.get("type", "default")))


def rotation_of(config: dict[str, Any]) -> Rotation:
    """What transformers' Llama makes of a config; of a kind among KINDS."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig.from_dict(config))
    return Rotation(tuple(rotary.inv_freq.tolist()), float(rotary.attention_scaling))
