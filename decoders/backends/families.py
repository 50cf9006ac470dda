"""Decoder families that run natively: what their checkpoints hold and what their configs mean.

A layer knows no family. It runs what `Shape` (llama/shape.py) and `LayerWeights` (llama/model.py)
say; a family is a row here, by the name that transformers gives its architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .rope import IN_PART, KINDS, THETA, Rotation, kind_of, pairs_apart, rotation_of, turning_of

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names of layers
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}  # a config's names -> ours
CLAMPED = "clamped"  # gpt-oss's, whose configs say silu
GAIN, LIMIT = 1.702, 7.0  # of that one
LONG, FIRST_TRAINED = "longrope", "original_max_position_embeddings"
HARMLESS: dict[str, tuple[Any, ...]] = {  # fields that change a model unless they have these values
    "mlp_bias": (False, None),
    "use_bidirectional_attention": (False, None),
    "clip_qkv": (None,),
    "quantization_config": (None,),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
    "swiglu_alpha": (GAIN,),
    "swiglu_limit": (LIMIT,),
}


@dataclass(frozen=True)
class Norms:
    """Names of a layer's norms in a checkpoint, each None where the family has none."""

    attention: str | None = "input_layernorm.weight"
    attention_out: str | None = None
    mlp: str | None = "post_attention_layernorm.weight"
    mlp_out: str | None = None


BEHIND = Norms(None, "post_attention_layernorm.weight", None, "post_feedforward_layernorm.weight")
AROUND = Norms(
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
)


def _all(config: dict[str, Any], layer: int) -> bool:
    return True


def _from_a_layer(config: dict[str, Any], layer: int) -> bool:
    return bool(layer >= config.get("max_window_layers", 28))


def _but_every(nth: int) -> Callable[[dict[str, Any], int], bool]:
    return lambda config, layer: (layer + 1) % config.get("sliding_window_pattern", nth) != 0


@dataclass(frozen=True)
class Family:
    """A family, by what sets it apart from Llama.

    model_type: transformers' name of its configs.
    gguf: the architecture that its GGUF files name; None where they name another family's.
    biased: whether queries, keys and values have biases, or "all" products of a layer.
    sinks: whether heads have sinks.
    clamped: whether the activation is gpt-oss's, whatever a config calls it.
    head_norms: whether queries and keys are normed, "each" head or "all" of them at once.
    fused: whether a checkpoint has q, k and v in one matrix, and gate and up in another.
    norms_from_one: whether a checkpoint has of norms' weights what they exceed 1 by.
    scaled_embedding: whether embeddings are multiplied by the root of their size.
    tied: whether the head is the embedding where a config does not say.
    experts: whether every layer has several MLPs, of which a token takes some.
    joint: whether a checkpoint has those of a layer in one tensor, turned over, with the rows of
        gate and up in turn.
    whole_shares: whether their shares are made to sum to 1 where a config does not say.
    score_cap, logit_cap: whether a config's soft caps count, of scores and of logits.
    query_scale: whether a config's `query_pre_attn_scalar` does.
    slides: whether a layer has a window where a config has one.
    asked: whether windows count only where a config asks for them, by `use_sliding_window`.
    listed: whether a config may list its layers instead.
    theta: base of the rotation where a config names none.
    local_theta: that of layers with windows, which is not scaled; None where all layers rotate
        alike.
    renamed: what a checkpoint calls parts of a layer, and what most families do.
    in_part: whether a config may let only the first dimensions of its heads turn.
    """

    model_type: str
    gguf: str | None
    norms: Norms = Norms()
    biased: Literal["qkv", "all"] | None = None
    sinks: bool = False
    clamped: bool = False
    head_norms: Literal["each", "all"] | None = None
    fused: bool = False
    norms_from_one: bool = False
    scaled_embedding: bool = False
    tied: bool = False
    experts: bool = False
    joint: bool = False
    whole_shares: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    query_scale: bool = False
    slides: Callable[[dict[str, Any], int], bool] | None = None
    asked: bool = False
    listed: bool = False
    theta: float = THETA
    local_theta: float | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    in_part: bool = False

    def usual(self, name: str) -> str:
        """Name a checkpoint's tensor as most families do."""
        for theirs, ours in self.renamed:
            name = name.replace(theirs, ours)
        return name

    def saved(self, name: str) -> str:
        """Name a tensor of that usual name as a checkpoint does."""
        for theirs, ours in self.renamed:
            name = name.replace(ours, theirs)
        return name

    @property
    def qkv(self) -> tuple[str, ...]:
        parts = ("qkv",) if self.fused else ("q", "k", "v")
        return tuple(f"self_attn.{part}_proj" for part in parts)

    @property
    def gate_up(self) -> tuple[str, ...]:
        return ("mlp.gate_up_proj",) if self.fused else ("mlp.gate_proj", "mlp.up_proj")


FAMILIES = {
    "LlamaForCausalLM": Family("llama", "llama"),
    "MistralForCausalLM": Family("mistral", None, slides=_all),
    "MixtralForCausalLM": Family(
        "mixtral", None, slides=_all, experts=True, whole_shares=True, theta=1_000_000.0,
        renamed=(
            ("block_sparse_moe.", "mlp."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."),
            (".w3.", ".up_proj."),
        ),
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2", "qwen2", biased="qkv", slides=_from_a_layer, asked=True, listed=True
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3", "qwen3", head_norms="each", slides=_from_a_layer, asked=True, listed=True
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe", "qwen3moe", head_norms="each", slides=_all, asked=True, experts=True
    ),
    "GptOssForCausalLM": Family(
        "gpt_oss", "gpt-oss", biased="all", sinks=True, clamped=True, slides=_but_every(2),
        listed=True, experts=True, joint=True, whole_shares=True, theta=150_000.0,
        renamed=(("mlp.router.", "mlp.gate."),),
    ),
    "OlmoeForCausalLM": Family("olmoe", "olmoe", head_norms="all", experts=True),
    "Phi3ForCausalLM": Family("phi3", "phi3", fused=True, slides=_all, in_part=True),
    "Olmo2ForCausalLM": Family("olmo2", "olmo2", BEHIND, head_norms="all"),
    "Olmo3ForCausalLM": Family(
        "olmo3", None, BEHIND, head_norms="all", slides=_but_every(4), listed=True,
        theta=500_000.0, local_theta=500_000.0,
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2", "gemma2", AROUND, norms_from_one=True, scaled_embedding=True, tied=True,
        score_cap=True, logit_cap=True, query_scale=True, slides=_but_every(2), listed=True,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text", "gemma3", AROUND, head_norms="each", norms_from_one=True,
        scaled_embedding=True, tied=True, logit_cap=True, query_scale=True,
        slides=_but_every(6), listed=True, theta=1_000_000.0, local_theta=10_000.0,
    ),
}  # fmt: skip


def family_of(config: dict[str, Any]) -> Family:
    """The row of a config that `unsupported` lets pass."""
    return FAMILIES[config["architectures"][0]]


@dataclass(frozen=True)
class Experts:
    """How a token takes some of a layer's MLPs.

    count: MLPs of a layer.
    taken: of a token, the likeliest ones.
    whole: whether their shares are made to sum to 1.
    width: of each.
    """

    count: int
    taken: int
    whole: bool
    width: int


def experts_of(config: dict[str, Any]) -> Experts | None:
    """None for a model whose layers have one MLP each."""
    family = family_of(config)
    if not family.experts:
        return None
    return Experts(
        config.get("num_experts") or config["num_local_experts"],
        config["num_experts_per_tok"],
        bool(config.get("norm_topk_prob", family.whole_shares)),
        config.get("moe_intermediate_size") or config["intermediate_size"],
    )


@dataclass(frozen=True)
class Attention:
    """How the layers of one kind attend.

    window: positions that a token sees, its own among them; 0 for all.
    """

    rotation: Rotation
    window: int = 0


def unsupported(config: dict[str, Any]) -> str | None:
    """Why the native backend does not run a model of this transformers config; None where it
    does."""
    architecture = (config.get("architectures") or ["none named"])[0]
    if architecture not in FAMILIES:
        return f"architecture {architecture} is not one of {', '.join(FAMILIES)}"
    family = FAMILIES[architecture]
    for layers in (FULL, SLIDING):
        rope = rope_of(config, family, layers)
        if kind_of(rope) not in KINDS:
            return f"rope type {kind_of(rope)} is not supported"
        if kind_of(rope) == LONG and not rope.get(FIRST_TRAINED):
            return f"rope type {LONG} without {FIRST_TRAINED} is not supported"
        if rope[IN_PART] != 1.0 and not family.in_part:
            return "heads that rotate in part are not supported"
    strange = set(_layer_types(config, family)) - {FULL, SLIDING}
    if strange:
        return f"layers of {min(strange)} are not supported"
    if _activation(config) not in ACTIVATIONS:
        return f"activation {_activation(config)} is not supported"
    if config.get("attention_bias") and not family.biased:
        return "biases in the attention's output projection are not supported"
    for field, values in HARMLESS.items():
        if config.get(field, values[0]) not in values:
            return f"{field} = {str(config[field])[:40]} is not supported"
    return None


def activation_of(config: dict[str, Any]) -> str:
    """The MLP's activation: silu, gelu by a hyperbolic tangent, or clamped."""
    return CLAMPED if family_of(config).clamped else ACTIVATIONS[_activation(config)]


def attention_of(config: dict[str, Any]) -> tuple[tuple[Attention, ...], tuple[int, ...]]:
    """The kinds of layers that a model has, and of every layer which of them it is."""
    family, kinds = family_of(config), dict[str, int]()
    window = config.get("sliding_window") or 0
    if window >= context_of(config):
        window = 0
    types = _layer_types(config, family)
    made = [kinds.setdefault(each, len(kinds)) for each in types]
    return tuple(
        Attention(
            rotation_of(config | {"rope_parameters": rope_of(config, family, each)}),
            window if each == SLIDING else 0,
        )
        for each in kinds
    ), tuple(made)


def rope_of(config: dict[str, Any], family: Family, layers: str) -> dict[str, Any]:
    """`rope_parameters` of the layers of one type, under whatever names a config has them."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = config.get("rope_theta") or family.theta
    part, trained = (config.get(name) for name in (IN_PART, FIRST_TRAINED))
    if family.local_theta is not None:
        apart = FULL in rope or SLIDING in rope
        if layers == SLIDING:
            theta = config.get("rope_local_base_freq", family.local_theta)
        rope = rope.get(layers) or {} if apart else rope if layers == FULL else {}
    rope = {"rope_theta": theta, IN_PART: part or 1.0, **rope}
    return rope if trained is None else {**rope, FIRST_TRAINED: trained}


def context_of(config: dict[str, Any]) -> int:
    """Positions that a model reads here: with `longrope` those that it was first trained for, as
    beyond them the first ones turn in another way too."""
    positions: int = config["max_position_embeddings"]
    rope = rope_of(config, family_of(config), FULL)
    return min(positions, rope[FIRST_TRAINED]) if kind_of(rope) == LONG else positions


def order_of(config: dict[str, Any]) -> list[int] | None:
    """A checkpoint's rows of queries, keys and values in the order of `pairs_apart`; None where
    that is the checkpoint's own, as whole heads turn."""
    rope, heads = rope_of(config, family_of(config), FULL), config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    turning = turning_of(rope, size)
    if turning == size:
        return None
    one, kv = pairs_apart(size, turning), config.get("num_key_value_heads") or heads
    rows = [head * size + at for head in range(heads + kv) for at in one]
    return [*rows, *range(len(rows), len(rows) + kv * size)]


def _layer_types(config: dict[str, Any], family: Family) -> list[str]:
    """transformers' name of every layer's type."""
    count = config.get("num_hidden_layers", 0)
    slides = family.slides
    silent = family.asked and not config.get("use_sliding_window")
    if slides is None or silent or not config.get("sliding_window"):
        return [FULL] * count
    listed: list[str] | None = config.get("layer_types") if family.listed else None
    return listed or [SLIDING if slides(config, layer) else FULL for layer in range(count)]


def _activation(config: dict[str, Any]) -> str:
    named: str = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    return named
