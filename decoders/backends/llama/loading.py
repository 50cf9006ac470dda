"""From a transformers folder to a model's weights, each as it is multiplied by.

Layer by layer: one is read, fused, and laid out for the CPU or rounded before the next is read, so
that memory never holds more than the model and one layer again. Files are mapped into memory only
while a layer is read: pages that were read before would count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ...common.errors import DraftpickError
from ...common.tensor_files import Shape as TensorShape
from ...common.tensor_files import below, header_of, indexed, require
from ..config import config_of
from ..cpp_kernels import loaded
from ..gguf.folder import saved_header
from ..gguf.header import Header
from ..gguf.tensors import names_of, read, rows
from ..weights.file_blocks import KINDS, FileBlocks, FileRows, to_file_blocks
from ..weights.packed import Matrix, Rounder, Rounding, in_blocks, narrowed, pack, rounded
from ..weights.rounded_store import RoundedStore
from .contents import needed
from .model import LayerWeights, Shape, Weights, shape_of

HEAD = "lm_head.weight"


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


def load(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    rounding: Rounding | None = None,
    store: RoundedStore | None = None,
    blocked: bool = False,
) -> tuple[Shape, Weights]:
    """Shape and weights of a folder with safetensors files, or that names GGUF files.

    rounding: of the matrices; "file" leaves those of GGUF files as they are.
    store: where they are kept rounded; None rounds them at each loading.
    blocked: as in packed.kind_of, of what no store rounds; without rounding, bfloat16 in blocks.

    Raises Damaged where the files lack a tensor that the config asks for, or hold it in another
    shape.
    """
    by = None if store is None else store.rounded
    config, header = config_of(folder), saved_header(folder)
    shape, wanted = shape_of(config), needed(config)
    if rounding == "file":
        if header is None:
            raise DraftpickError(f"{folder.name} is no GGUF file; use another --dtype")
        return shape, as_it_is(shape, FileStored(header, device, dtype, wanted))
    stored = (
        Stored(folder, device, dtype, wanted)
        if header is None
        else FileStored(header, device, dtype, wanted)
    )
    how = layout(rounding, blocked, by)
    layers = [packed_layer(fused(stored.tensors(f"layers.{i}.")), how) for i in range(shape.layers)]
    embedding, norm = (stored.tensors(f"{name}.")["weight"] for name in ("embed_tokens", "norm"))
    head = stored.tensors("lm_head.").get("weight", embedding)
    if head is not embedding and torch.equal(head, embedding):  # as some tools save a tied one
        head = embedding
    last = packed_head(head, rounding, blocked, by)
    if store is not None:
        store.save()
    return shape, Weights(embedding, layers, norm, last, tied=head is embedding)


class Stored:
    """Tensors of a folder's safetensors files, by name without a leading `model.`. Raises Damaged
    where one is not there, or has another shape.

    A head is taken where there is one, whatever the config says, as transformers does: tools that
    merge fine-tunes leave `tie_word_embeddings` as it was.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        needed: Mapping[str, TensorShape],
    ) -> None:
        self._device, self._dtype = device, dtype
        self._names: dict[Path, dict[str, str]] = {}
        held: dict[str, TensorShape] = {}
        for part in parts(folder):
            header = header_of(part)
            names = {name: name.removeprefix("model.") for name in header}
            held |= {short: header[name] for name, short in names.items()}
            if HEAD in held:
                needed = {**needed, HEAD: needed["embed_tokens.weight"]}
            wanted = {*needed, HEAD}
            self._names[part] = {name: short for name, short in names.items() if short in wanted}
        if not self._names:
            raise DraftpickError(
                f"{folder} holds no safetensors files; save its model again with transformers' "
                "save_pretrained"
            )
        require(folder, held, needed)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, by the rest of their names, copied out of the files."""
        found: dict[str, Tensor] = {}
        for part, names in self._names.items():
            wanted = {name: short for name, short in names.items() if short.startswith(prefix)}
            if not wanted:
                continue
            with safe_open(part, framework="pt", device=str(self._device)) as file:
                for name, short in wanted.items():
                    tensor = file.get_tensor(name).to(self._dtype, copy=True)
                    found[short.removeprefix(prefix)] = tensor
        return found


def parts(folder: Path) -> list[Path]:
    """The safetensors files that make up the model: a hub's folder may hold it twice. Raises
    Damaged where one that the index names is not there."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return indexed(index)
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def fused(stored: dict[str, Tensor]) -> LayerWeights:
    """One layer of a transformers state dict, by the names of its parts."""
    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    biased = f"{qkv[0]}.bias" in stored
    norms = [
        stored[n] for n in ("self_attn.q_norm.weight", "self_attn.k_norm.weight") if n in stored
    ]
    return LayerWeights(
        attention_norm=stored["input_layernorm.weight"],
        qkv=torch.cat([stored[f"{name}.weight"] for name in qkv]),
        qkv_bias=torch.cat([stored[f"{name}.bias"] for name in qkv]) if biased else None,
        head_norms=torch.stack(norms) if norms else None,
        out=stored["self_attn.o_proj.weight"],
        mlp_norm=stored["post_attention_layernorm.weight"],
        gate_up=torch.cat([stored[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]),
        down=stored["mlp.down_proj.weight"],
    )


def layout(
    rounding: Rounding | None, blocked: bool = False, by: Rounder | None = None
) -> Callable[[Matrix], Matrix]:
    """How a layer's matrix is laid out for the CPU (see packed.py), or rounded as well.

    blocked: in blocks.
    by: what rounds; None is `rounded`.
    """
    if rounding is None:
        return in_blocks if blocked else pack
    return partial(narrowed, rounding, by=by or partial(rounded, blocked=blocked))


def packed_layer(w: LayerWeights, how: Callable[[Matrix], Matrix] = pack) -> LayerWeights:
    """One layer, its four matrices laid out so."""
    return replace(w, qkv=how(w.qkv), out=how(w.out), gate_up=how(w.gate_up), down=how(w.down))


def packed_head(
    head: Matrix, rounding: Rounding | None, blocked: bool = False, by: Rounder | None = None
) -> Matrix:
    """Pack the head as `layout` says, but not below int8 (docs/notes/performance.md)."""
    return layout(rounding and "int8", blocked, by)(head)
