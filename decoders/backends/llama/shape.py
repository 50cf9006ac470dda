"""Sizes of a model, and what it computes between its products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..families import (
    Attention,
    Experts,
    activation_of,
    attention_of,
    context_of,
    experts_of,
    family_of,
)
from ..weights.int4 import unsupported_reason

EXPERTS_STAY = "its layers' experts are left in their own precision"


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and what it computes between its products.

    kinds: how layers attend; `LayerWeights.kind` says which of them a layer is.
    activation: of the MLP, "silu", "gelu" or "clamped".
    attention_scale: of scores; None for one over the root of head_dim.
    embedding_scale: of embeddings.
    score_cap, logit_cap: what scores and logits are bent to stay below; None where they are not.
    experts: of layers that have several MLPs.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_eps: float
    kinds: tuple[Attention, ...]
    activation: str = "silu"
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    score_cap: float | None = None
    logit_cap: float | None = None
    experts: Experts | None = None


def shape_of(config: dict[str, Any]) -> Shape:
    """Sizes from a transformers `config.json` as a dict."""
    heads, d = config["num_attention_heads"], config["hidden_size"]
    family = family_of(config)
    scaled_by = config.get("query_pre_attn_scalar") if family.query_scale else None
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=d,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or d // heads,
        vocab=config["vocab_size"],
        context=context_of(config),
        norm_eps=config["rms_norm_eps"],
        kinds=attention_of(config)[0],
        activation=activation_of(config),
        attention_scale=scaled_by and scaled_by**-0.5,
        embedding_scale=d**0.5 if family.scaled_embedding else 1.0,
        score_cap=config.get("attn_logit_softcapping") if family.score_cap else None,
        logit_cap=config.get("final_logit_softcapping") if family.logit_cap else None,
        experts=experts_of(config),
    )


def not_int4(config: dict[str, Any]) -> str | None:
    """Why this model's matrices cannot be rounded to int4, or None where they can."""
    shape = shape_of(config)
    if shape.experts is not None:
        return EXPERTS_STAY
    return unsupported_reason(
        {
            "hidden size": shape.hidden,
            "intermediate size": config["intermediate_size"],
            "query size": shape.heads * shape.head_dim,
            "key size": shape.kv_heads * shape.head_dim,
        }
    )
