"""What a GGUF file says of its model and tokenizer: each field is used, changes nothing at its
value, or is refused by its name. One that is passed over would make another model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends.families import SLIDING
from ..backends.gguf.header import Header
from ..common.errors import DraftpickError

Harmless = Callable[[Any, dict[str, Any]], bool]  # of a value and the config that was made


def _any(value: Any, config: dict[str, Any]) -> bool:
    return True


def _is(*values: Any) -> Harmless:
    return lambda value, config: any(value == each for each in values)


def _as_in(name: str) -> Harmless:
    return lambda value, config: config.get(name) is not None and value == config[name]


def _as_config(name: str) -> Harmless:
    return lambda value, config: not value or value == config.get(name)


def _as_heads(value: Any, config: dict[str, Any]) -> bool:
    """All of a head's width; a config that names none has the usual one."""
    size = config.get("head_dim")
    if size is None and config.get("num_attention_heads"):
        size = config.get("hidden_size", 0) // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    part = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return not size or value in (size, round(size * part))


def _slides_so(value: Any, config: dict[str, Any]) -> bool:
    never = not value or value >= config.get("max_position_embeddings", 0)
    return never or value == config.get("sliding_window")


def _as_bases(value: Any, config: dict[str, Any]) -> bool:
    rope = config.get("rope_parameters") or {}
    return bool(value == rope.get(SLIDING, rope).get("rope_theta"))


def _scaled_so(value: Any, config: dict[str, Any]) -> bool:
    rope = config.get("rope_parameters") or {}
    return bool(value == rope.get("attention_factor", 1))


def _listed(value: Any, config: dict[str, Any]) -> bool:
    return config.get("layer_types") is not None


USED = {
    "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "rope.freq_base",
}  # fmt: skip
SCALING = {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"}
MODEL: dict[str, Harmless] = {  # by the name behind the architecture's
    **dict.fromkeys(("vocab_size", "tensor_data_layout", "rope.scaling.finetuned"), _any),
    "attention.key_length": _as_heads,
    "attention.value_length": _as_heads,
    "rope.dimension_count": _as_heads,
    "attention.sliding_window": _slides_so,
    "attention.sliding_window_pattern": _listed,
    "attention.causal": _is(True),
    "rope.freq_base_swa": _as_bases,
    "expert_count": _as_config("num_experts"),
    "expert_used_count": _as_config("num_experts_per_tok"),
    "expert_feed_forward_length": _as_config("moe_intermediate_size"),
    **dict.fromkeys(
        ("leading_dense_block_count", "nextn_predict_layers",
         "attention.clamp_kqv", "attention.max_alibi_bias", "use_parallel_residual",
         "rope.scaling.yarn_log_multiplier", "pooling_type", "attention.scale"),
        _is(0),
    ),
    **dict.fromkeys(
        ("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor", "rope.scale_linear",
         "logit_scale", "embedding_scale", "residual_scale"),
        _is(1),
    ),
    "rope.scaling.attn_factor": _scaled_so,
    "rope.scaling.yarn_beta_fast": _is(32),
    "rope.scaling.yarn_beta_slow": _is(1),
    "attn_logit_softcapping": _as_in("attn_logit_softcapping"),
    "final_logit_softcapping": _as_in("final_logit_softcapping"),
}  # fmt: skip
TOKENIZER_USED = {
    "chat_template", "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges",
    "ggml.scores", "ggml.add_bos_token", "ggml.add_eos_token", "ggml.add_space_prefix",
    *(f"ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
    *(f"ggml.{name}_token_id" for name in ("fim_pad", "fim_rep", "fim_sep")),
}  # fmt: skip
TOKENIZER: dict[str, Harmless] = {  # that name tokens, and say nothing of how texts are cut
    **dict.fromkeys(
        ("ggml.token_type_count", "ggml.added_tokens", "huggingface.json", "chat_templates",
         "ggml.remove_extra_whitespaces"),
        _any,
    ),
    **dict.fromkeys(
        (f"ggml.{name}_token_id" for name in
         ("seperator", "separator", "cls", "mask", "prefix", "suffix", "middle", "fim_pre",
          "fim_suf", "fim_mid")),
        _any,
    ),
    "ggml.add_sep_token": _is(False),
}  # fmt: skip


def require_known(header: Header, config: dict[str, Any], as_it_is: bool) -> None:
    """Raises DraftpickError for a field of the tokenizer, of positions or of the architecture that
    is neither used nor known to change nothing.

    config: what was made of the file, as of `config.json`.
    as_it_is: made here, where a list, a number for each layer, is not read; else by transformers.
    """
    own = f"{header.architecture}."
    used = SCALING | (USED if as_it_is else _converted(header))
    joined = header.metadata.get("tokenizer.ggml.model") == "t5"
    for field, value in header.metadata.items():
        if field.startswith("tokenizer."):
            name = field.removeprefix("tokenizer.")
            known = name in TOKENIZER_USED or name.startswith("chat_template.")
            harmless = TOKENIZER.get(name)
            known = known or (joined and name == "ggml.precompiled_charsmap")
        elif field.startswith(own):
            name = field.removeprefix(own)
            known = name in used and not (as_it_is and isinstance(value, list))
            harmless = MODEL.get(name)
        else:
            continue
        if not (known or (harmless is not None and harmless(value, config))):
            shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]} ..."
            raise DraftpickError(
                f"{header.files[0]} says {field} = {shown}, which is not known here, and without "
                "it the model would be another one; name its own transformers folder"
            )


def _converted(header: Header) -> set[str]:
    """What transformers reads of a file of this architecture."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    name = header.architecture.replace("-", "_")
    for each in (name, name.replace("moe", "_moe")):
        if each in GGUF_CONFIG_MAPPING:
            return {field for field, read in GGUF_CONFIG_MAPPING[each].items() if read}
    return {field.removeprefix(f"{header.architecture}.") for field in header.metadata}
