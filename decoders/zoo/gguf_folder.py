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

from ..backends.families import FAMILIES, FIRST_TRAINED, FULL, LONG, SLIDING
from ..backends.gguf.folder import save_header
from ..backends.gguf.header import Header
from ..backends.gguf.tensors import architecture_of, names_of, read, strange_tensor
from ..backends.llama.contents import needed
from ..backends.rope import rotation_of
from ..common.errors import DraftpickError
from ..common.tensor_files import require
from .catalogue import READING
from .gguf_fields import require_known
from .gguf_tokenizer import ends_of, split_of, tokenizer_of

LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    FIRST_TRAINED: 8192,
}  # the values of every Llama from 3.1 on; a file holds only what they come to
YARN = "yarn"
REQUIRED = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "context_length",
)  # fmt: skip


def not_as_it_is(header: Header) -> str | None:
    """Why the native backend does not read a file as it is; None where it does."""
    if header.architecture not in {family.gguf for family in FAMILIES.values()}:
        return f"its architecture is {header.architecture}"
    strange = strange_tensor(header)
    if strange:
        return f"it holds {strange}, which such models do not have"
    if header.own("attention.sliding_window") and header.architecture not in MEANT:
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
    architecture = architecture_of(header)
    family = FAMILIES[architecture]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": family.model_type,
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
    if config["rope_parameters"]["rope_type"] == LONG:  # transformers takes it from here
        config[FIRST_TRAINED] = config["rope_parameters"][FIRST_TRAINED]
    meant = MEANT.get(header.architecture, _experts if family.experts else None)
    return config | ({"hidden_act": "silu"} if meant is None else meant(header, config))


def _gemma3(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    """Fields that llama.cpp takes for granted of such a file, which does not say them."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    slides = header.own("attention.sliding_window_pattern", 6)
    if isinstance(slides, int):
        slides = [(layer + 1) % slides != 0 for layer in range(layers)]
    local = {"rope_type": "default", "rope_theta": header.own("rope.freq_base_swa", 10_000.0)}
    large = layers == LAYERS_OF_27B
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // heads if large else config["head_dim"],
        "sliding_window": header.own("attention.sliding_window"),
        "layer_types": [SLIDING if each else FULL for each in slides],
        "rope_parameters": {FULL: config["rope_parameters"], SLIDING: local},
    }


def _experts(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "num_experts": header.own("expert_count"),
        "num_experts_per_tok": header.own("expert_used_count"),
        "moe_intermediate_size": header.own(
            "expert_feed_forward_length", config["intermediate_size"]
        ),
        "norm_topk_prob": header.architecture != "olmoe",
    }


def _gpt_oss(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    """Every other layer slides, and scaled positions are not rounded to whole dimensions."""
    rope = config["rope_parameters"]
    return {
        **_experts(header, config),
        "sliding_window": header.own("attention.sliding_window"),
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == YARN else {}),
    }


def _gemma2(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    """Likewise; every other layer slides."""
    large = config["num_hidden_layers"] == LAYERS_OF_GEMMA2_27B
    size = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": size if large else config["head_dim"],
        "sliding_window": header.own("attention.sliding_window", 4096),
        "attn_logit_softcapping": header.own("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.own("final_logit_softcapping", 30.0),
    }


def _phi3(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    turning = header.own("rope.dimension_count", config["head_dim"])
    return {
        "hidden_act": "silu",
        "sliding_window": header.own("attention.sliding_window"),
        "partial_rotary_factor": turning / config["head_dim"],
    }


LAYERS_OF_27B, LAYERS_OF_GEMMA2_27B = 62, 46  # whose queries are scaled by another size
MEANT = {  # of a family's config, beside what all files say
    "gemma2": _gemma2, "gemma3": _gemma3, "phi3": _phi3, "gpt-oss": _gpt_oss
}  # fmt: skip


def scaling_of(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    """What `rope_parameters` of a config without scaling lack; nothing where positions are not
    scaled. Raises DraftpickError for a scaling that has no name there."""
    kind = header.own("rope.scaling.type") or "none"
    original = header.own("rope.scaling.original_context_length")
    factors = {f"{which}_factor": f"rope_factors_{which}.weight" for which in ("short", "long")}
    if original and kind in ("none", LONG) and {*factors.values()} <= {*header.tensors}:
        given = {name: read(header, tensor).tolist() for name, tensor in factors.items()}
        scale = header.own("rope.scaling.attn_factor")
        given |= {} if scale is None else {"attention_factor": scale}
        return {"rope_type": LONG, FIRST_TRAINED: original, **given}
    if kind in ("linear", YARN):
        known = {} if original is None else {FIRST_TRAINED: original}
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
    wanted = needed(config, joined=True)
    shapes = [{_whole(name): shape for name, shape in each.items()} for each in (held, wanted)]
    require(header.files[0], *shapes)


def _whole(name: str) -> str:
    """The tensors as a checkpoint of transformers has them."""
    return name if name.startswith("lm_head.") else f"model.{name}"
