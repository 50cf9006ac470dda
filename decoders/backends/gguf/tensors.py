"""The tensors of a GGUF file by transformers' names, as blocks or as ordinary numbers.

Files of Llama's architecture hold the rows of queries and keys in another order, for positions that
turn neighbouring pairs; here they are in transformers' order. Rows stay whole, and so do blocks.
"""

from __future__ import annotations

import math
import mmap
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.errors import Damaged
from ..families import FAMILIES, Family
from .header import Header, StoredTensor

LAYER = re.compile(r"^blk\.(\d+)\.")
NORMS = {  # in the file -> the field of Norms (families.py) that names it
    "attn_norm.weight": "attention",
    "post_attention_norm.weight": "attention_out",
    "ffn_norm.weight": "mlp",
    "post_ffw_norm.weight": "mlp_out",
}
OF_ALL = {  # biases that families have whose products all have some, and sinks
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp.bias": "mlp.gate.bias",
    **{f"ffn_{part}_exps.bias": f"mlp.experts.{part}_proj.bias" for part in ("gate", "up", "down")},
}
NAMES = {  # in the file -> in a transformers checkpoint, of a layer and of the rest
    **{
        f"attn_{part}.{kind}": f"self_attn.{part}_proj.{kind}"
        for part in ("q", "k", "v", "qkv")
        for kind in ("weight", "bias")
    },
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    **{f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{
        f"ffn_{part}_exps.weight": f"mlp.experts.{part}_proj.weight"
        for part in ("gate", "up", "down")
    },
    "ffn_gate_inp.weight": "mlp.gate.weight",
    **OF_ALL,
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "",  # what a config says, as are the next
    "rope_factors_long.weight": "",
    "rope_factors_short.weight": "",
}


def names_of(header: Header) -> dict[str, str]:
    """What a transformers checkpoint calls each tensor, without a leading `model.` -> its name in
    the file; what a model of the file's architecture does not have is left out."""
    found, names = {}, _names(FAMILIES[architecture_of(header)])
    for name in header.tensors:
        layer = LAYER.match(name)
        short = names.get(name[layer.end() :] if layer else name)
        if short:
            found[f"layers.{layer[1]}.{short}" if layer else short] = name
    return found


def strange_tensor(header: Header) -> str | None:
    """A tensor that models of the file's architecture do not have."""
    names = _names(FAMILIES[architecture_of(header)])
    return next((name for name in header.tensors if LAYER.sub("", name) not in names), None)


def architecture_of(header: Header) -> str:
    """The name that transformers has for it; the file is one that is read as it is."""
    if header.architecture == "llama" and header.own("expert_count"):
        return "MixtralForCausalLM"
    return next(name for name, each in FAMILIES.items() if each.gguf == header.architecture)


def _names(family: Family) -> dict[str, str]:
    norms = {name: getattr(family.norms, field) for name, field in NORMS.items()}
    made = NAMES | {name: own for name, own in norms.items() if own is not None}
    own = [name for name in made if name.startswith("ffn_") and name not in NORMS]
    for name in own:  # of a layer with one MLP, or with several
        if ("_exps." in name or name.startswith("ffn_gate_inp.")) != family.experts:
            del made[name]
    if family.biased != "all":
        made = {name: own for name, own in made.items() if name not in OF_ALL}
    if family.fused:  # gate and up are in one
        made["ffn_up.weight"] = f"{family.gate_up[0]}.weight"
    if family.sinks:  # in files of gpt-oss the MLP's norm goes by this name
        made["post_attention_norm.weight"] = made.pop("ffn_norm.weight")
    return made


def rows(header: Header, name: str) -> Tensor:
    """The bytes of a tensor's rows, uint8 [out, bytes], of transformers' order."""
    stored = header.tensors[name]
    count = math.prod(stored.shape[:-1])
    content = _bytes(header, stored).reshape(count, -1)
    turned = LAYER.sub("", name).removesuffix(".weight")
    if header.architecture == "llama" and turned in ("attn_q", "attn_k"):
        heads = header.own("attention.head_count")
        if turned == "attn_k":
            heads = header.own("attention.head_count_kv", heads)
        pairs = content.reshape(heads, count // heads // 2, 2, -1)
        content = pairs.swapaxes(1, 2).reshape(count, -1)
    return torch.from_numpy(content)


def read(header: Header, name: str) -> Tensor:
    """A tensor's numbers, float32, as the package `gguf` dequantises them."""
    from gguf import GGMLQuantizationType, dequantize

    stored = header.tensors[name]
    made = dequantize(rows(header, name).numpy(), GGMLQuantizationType(stored.kind))
    return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32)).reshape(stored.shape)


def _bytes(header: Header, stored: StoredTensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Mapped for as long as the array lives; what is written to it does not reach the file."""
    path = header.files[stored.part]
    begin = stored.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    end = stored.offset + stored.size
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), end - begin, access=mmap.ACCESS_COPY, offset=begin)
    except ValueError:
        raise Damaged(f"{path} is cut short; fetch it again") from None
    return np.frombuffer(content, np.uint8, stored.size, stored.offset - begin)
