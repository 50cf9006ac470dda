"""A GGUF file as a model's folder, for models that the native backend runs: config and tokenizer
out of its metadata, no weights.

The weights stay where they are and are read from there (backends/gguf). The tokenizer is kept, as
making one takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from ..backends.gguf.folder import save_header
from ..backends.gguf.header import Header
from ..backends.gguf.tensors import LAYER, NAMES, names_of, read
from ..backends.llama.contents import needed
from ..backends.llama.rope import rotation_of
from ..common.errors import DraftpickError
from ..common.tensor_files import require
from .catalogue import READING
from .gguf_fields import require_known
from .gguf_tokenizer import ends_of, split_of, tokenizer_of

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # Mistral's files too
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # the values of every Llama from 3.1 on; a file holds only what they come to
REQUIRED = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "context_length",
)  # fmt: skip


def not_as_it_is(header: Header) -> str | None:
    """Why the native backend does not read a file as it is; None where it does."""
    if header.architecture not in ARCHITECTURES:
        return f"its architecture is {header.architecture}"
    strange = [name for name in header.tensors if LAYER.sub("", name) not in NAMES]
    if strange:
        return f"it holds {strange[0]}, which such models do not have"
    if header.own("attention.sliding_window") and header.architecture == "llama":
        return "its attention slides"
    return None


def config_of(header: Header) -> dict[str, Any]:
    """What `config.json` of the model's folder would say.

    Raises DraftpickError where a field is missing, or positions are scaled in a way that has no
    name there.
    """
    missing = [name for name in REQUIRED if header.own(name) is None]
    missing += [name for name in ("token_embd.weight",) if name not in header.tensors]
    if missing:
        raise DraftpickError(f"{header.files[0]} lacks {missing[0]}; convert the model again")
    heads, hidden = header.own("attention.head_count"), header.own("embedding_length")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[header.architecture]],
        "model_type": header.architecture,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": header.own("feed_forward_length"),
        "num_hidden_layers": header.own("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.own("attention.head_count_kv", heads),
        "head_dim": header.own("attention.key_length", hidden // heads),
        "max_position_embeddings": header.own("context_length"),
        "rms_norm_eps": header.own("attention.layer_norm_rms_epsilon"),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": header.own("rope.freq_base", 10_000.0),
        },
    }
    config["bos_token_id"] = header.metadata.get("tokenizer.ggml.bos_token_id")
    config["eos_token_id"] = ends_of(header) or None
    config["rope_parameters"] |= scaling_of(header, config)
    return config


def scaling_of(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    """What `rope_parameters` of a config without scaling lack; nothing where positions are not
    scaled. Raises DraftpickError for a scaling that has no name there."""
    kind = header.own("rope.scaling.type") or "none"
    if kind in ("linear", "yarn"):
        original = header.own("rope.scaling.original_context_length")
        known = {} if original is None else {"original_max_position_embeddings": original}
        return {"rope_type": kind, "factor": header.own("rope.scaling.factor"), **known}
    if kind != "none":
        raise DraftpickError(f"positions scaled by {kind!r} are not supported")
    if "rope_freqs.weight" not in header.tensors:
        return {}
    slower = read(header, "rope_freqs.weight")
    plain = config["rope_parameters"]
    scaling = {**LLAMA3, "factor": float(slower.max())}
    one, other = (
        torch.tensor(rotation_of({**config, "rope_parameters": rope}).frequencies)
        for rope in (plain, {**plain, **scaling})
    )
    if one.shape != slower.shape or not torch.allclose(other * slower, one, rtol=1e-3):
        raise DraftpickError("its position scaling differs from Llama 3's")
    return scaling


def name_of(header: Header) -> str:
    """Another one where the files have moved or changed."""
    stats = [(file, file.stat()) for file in header.files]
    facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    digest = hashlib.sha256(repr((READING, *facts)).encode()).hexdigest()
    return f"{header.files[0].stem}-{digest[:8]}"


def write_folder(header: Header, made: Path) -> None:
    """Fills a folder. Raises DraftpickError as `config_of` does."""
    print("reading its config and tokenizer (once) ...", file=sys.stderr, flush=True)
    _check_kinds(header)
    split_of(header.metadata, header.files[0])
    config = config_of(header)
    require_known(header, config, as_it_is=True)
    _check(header, config)
    (made / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    tokenizer_of(header).save_pretrained(made)
    save_header(header, made)


def _check_kinds(header: Header) -> None:
    """Raises DraftpickError where weights are of a kind that cannot be made numbers."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    for number, name in {each.kind: each.name for each in header.tensors.values()}.items():
        kind = GGMLQuantizationType(number)
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise DraftpickError(
                f"{name} is stored as {kind.name}, which cannot be read here: take the file in "
                "Q4_K_M, Q8_0 or another common kind"
            ) from None


def _check(header: Header, config: dict[str, Any]) -> None:
    """Raises Damaged where the files lack a tensor, or hold it in another shape."""
    held = {name: header.tensors[own].shape for name, own in names_of(header).items()}
    shapes = [
        {_whole(name): shape for name, shape in each.items()} for each in (held, needed(config))
    ]
    require(header.files[0], *shapes)


def _whole(name: str) -> str:
    """The tensors as a checkpoint of transformers has them."""
    return name if name.startswith("lm_head.") else f"model.{name}"
