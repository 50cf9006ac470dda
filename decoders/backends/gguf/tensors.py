"""The tensors of a GGUF file by transformers' names, as blocks or as ordinary numbers.

Files of Llama's architecture hold the rows of queries and keys in another order, for positions that
turn neighbouring pairs; here they are in transformers' order. Rows stay whole, and so do blocks.
"""

from __future__ import annotations

import mmap
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.errors import Damaged
from .header import Header, StoredTensor

LAYER = re.compile(r"^blk\.(\d+)\.")
NAMES = {  # in the file -> in a transformers checkpoint, of a layer and of the rest
    "attn_norm.weight": "input_layernorm.weight",
    **{
        f"attn_{part}.{kind}": f"self_attn.{part}_proj.{kind}"
        for part in "qkv"
        for kind in ("weight", "bias")
    },
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "",  # what a config says
}


def names_of(header: Header) -> dict[str, str]:
    """What a transformers checkpoint calls each tensor, without a leading `model.` -> its name in
    the file."""
    found = {}
    for name in header.tensors:
        layer = LAYER.match(name)
        short = NAMES.get(name[layer.end() :] if layer else name)
        if short:
            found[f"layers.{layer[1]}.{short}" if layer else short] = name
    return found


def rows(header: Header, name: str) -> Tensor:
    """The bytes of a tensor's rows, uint8 [out, bytes], of transformers' order."""
    stored = _stored(header, name)
    count = 1 if len(stored.shape) == 1 else stored.shape[0]
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

    stored = _stored(header, name)
    made = dequantize(rows(header, name).numpy(), GGMLQuantizationType(stored.kind))
    return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32)).reshape(stored.shape)


def _stored(header: Header, name: str) -> StoredTensor:
    if name not in header.tensors:
        raise Damaged(f"{header.files[0]} lacks the tensor {name}; fetch or convert it again")
    return header.tensors[name]


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
