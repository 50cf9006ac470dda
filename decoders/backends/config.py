"""A model folder's config.json, with transformers' defaults for what it leaves out.

A config of a shape that the native backend knows and that leaves nothing out is taken as it is:
transformers' class of it takes seconds to import.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..common.errors import DraftpickError

FIELDS = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    "hidden_act",
}  # fmt: skip
WHOLE = {  # with these fields nothing that the native backend reads is left to a default
    "LlamaForCausalLM": FIELDS,
    "MistralForCausalLM": FIELDS | {"sliding_window"},
    "Qwen2ForCausalLM": FIELDS,
    "Qwen3ForCausalLM": FIELDS | {"head_dim"},
}
ROPE = ("rope_parameters", "rope_theta")  # either


def config_of(folder: Path) -> dict[str, Any]:
    """What the model's config says. Raises DraftpickError where it is no object of JSON, or holds
    what transformers does not take."""
    path = folder / "config.json"
    try:
        stat = path.stat()
        return copy.deepcopy(_read(path, stat.st_mtime_ns, stat.st_size))
    except OSError as error:
        raise DraftpickError(
            f"{folder} holds no config.json that can be read; name a transformers model folder"
        ) from error


def text_config_of(folder: Path) -> dict[str, Any]:
    """The text part of a multimodal config; any other config unchanged. Raises as `config_of`."""
    config = config_of(folder)
    text: dict[str, Any] = config.get("text_config", config)
    return text


@lru_cache(64)
def _read(path: Path, written_ns: int, size: int) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DraftpickError(
            f"{path} is no JSON ({error}); fetch or save the model again"
        ) from error
    if not isinstance(config, dict):
        raise DraftpickError(f"{path} holds no object; fetch or save the model again")
    return config if _whole(config) else with_defaults(path, config)


def _whole(config: dict[str, Any]) -> bool:
    needed = WHOLE.get((config.get("architectures") or [""])[0])
    return (
        needed is not None
        and all(config.get(name) is not None for name in needed - {"sliding_window", "head_dim"})
        and needed <= config.keys()
        and any(name in config for name in ROPE)
        and "eos_token_id" in config  # which may be null
        and not config.get("use_sliding_window")  # with fields of its own
    )


def with_defaults(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Fill in transformers' defaults. An unknown model type is left unchanged; the loader reports
    it."""
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type") or _kind_of((config.get("architectures") or [""])[0])
    if kind not in CONFIG_MAPPING:
        return config
    try:
        made = CONFIG_MAPPING[kind].from_dict({**config, "model_type": kind})
        usual = {name: getattr(made, name) for name in made.attribute_map}
        return {**config, **usual, **made.to_dict()}
    except Exception as error:  # transformers' checks raise many kinds
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise DraftpickError(
            f"{path} is no config of a {kind} model ({reason[0].strip()}); fetch or save the model "
            "again"
        ) from error


def _kind_of(architecture: str) -> str:
    return architecture.removesuffix("ForCausalLM").lower() if architecture in WHOLE else ""
