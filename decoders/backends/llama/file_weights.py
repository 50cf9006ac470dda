"""The weights of a model in GGUF files: its matrices as the file has them, or ordinary tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...common.naming import below
from ...common.tensor_files import Shape as TensorShape
from ...common.tensor_files import require
from ..cpp_kernels import loaded
from ..gguf.header import Header
from ..gguf.tensors import names_of, read, rows
from ..weights.file_blocks import KINDS, FileBlocks, FileRows, to_file_blocks
from ..weights.packed import Matrix, in_blocks
from .model import LayerWeights, Shape, Weights


class FileStored:
    """Tensors stored in GGUF files."""

    def __init__(
        self,
        header: Header,
        device: torch.device,
        dtype: torch.dtype,
        needed: Mapping[str, TensorShape],
    ) -> None:
        self._header, self._device, self._dtype = header, device, dtype
        self._names = names_of(header)
        held = {name: header.tensors[own].shape for name, own in self._names.items()}
        require(header.files[0], held, needed)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, dequantised."""
        own = below(self._names, prefix)
        return {name: self.one(prefix + name) for name in own}

    def has(self, name: str) -> bool:
        return name in self._names

    def one(self, name: str) -> Tensor:
        return self._numbers(self._names[name]).to(self._device, self._dtype)

    def _numbers(self, own: str) -> Tensor:
        """Float32; of a matrix by the kernels where they are loaded, which takes seconds less."""
        stored = self._header.tensors[own]
        if len(stored.shape) == 2 and loaded() and stored.kind in KINDS:
            blocks = to_file_blocks([self._rows(own)])
            if blocks is not None:
                return blocks.rows(torch.arange(blocks.outputs))
        return read(self._header, own)

    def _rows(self, own: str) -> FileRows:
        stored = self._header.tensors[own]
        return FileRows(rows(self._header, own), stored.kind, stored.shape[1])

    def matrix(self, *names: str) -> Matrix:
        """These below each other; in bfloat16 where the kernels have no such blocks."""
        parts = [self._rows(self._names[name]) for name in names]
        return to_file_blocks(parts) or in_blocks(torch.cat([self.one(name) for name in names]))


def as_it_is(shape: Shape, stored: FileStored) -> Weights:
    """What multiplies stays in the file's blocks; a head of its own too, and the embedding, whose
    rows are read out of them."""
    layers = [_layer(stored, f"layers.{i}.") for i in range(shape.layers)]
    embedding = stored.matrix("embed_tokens.weight")
    tied = not stored.has("lm_head.weight")
    head = embedding if tied else stored.matrix("lm_head.weight")
    if not isinstance(embedding, FileBlocks):
        embedding = stored.one("embed_tokens.weight")
    return Weights(embedding, layers, stored.one("norm.weight"), head, tied)


def _layer(stored: FileStored, prefix: str) -> LayerWeights:
    attention, mlp = f"{prefix}self_attn", f"{prefix}mlp"
    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    biases, norms = [f"{name}.bias" for name in qkv], [f"{attention}.{n}_norm.weight" for n in "qk"]
    return LayerWeights(
        attention_norm=stored.one(f"{prefix}input_layernorm.weight"),
        qkv=stored.matrix(*(f"{name}.weight" for name in qkv)),
        qkv_bias=torch.cat([stored.one(b) for b in biases]) if stored.has(biases[0]) else None,
        head_norms=torch.stack([stored.one(n) for n in norms]) if stored.has(norms[0]) else None,
        out=stored.matrix(f"{attention}.o_proj.weight"),
        mlp_norm=stored.one(f"{prefix}post_attention_layernorm.weight"),
        gate_up=stored.matrix(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
        down=stored.matrix(f"{mlp}.down_proj.weight"),
    )
