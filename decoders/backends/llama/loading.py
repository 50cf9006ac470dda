"""From a transformers folder to a model's weights, each as it is multiplied by.

Layer by layer: one is read, fused, and laid out for the CPU or rounded before the next is read, so
that memory never holds more than the model and one layer again. Files are mapped into memory only
while a layer is read: pages that were read before would count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from ..families import Family, attention_of, family_of, order_of
from ..gguf.folder import saved_header
from ..gguf.header import Header
from ..gguf.tensors import names_of, read, rows
from ..weights.file_blocks import FileBlocks, FileRows, to_file_blocks
from ..weights.packed import Matrix, Rounder, Rounding, in_blocks, narrowed, pack, rounded
from ..weights.rounded_store import RoundedStore
from .contents import needed
from .model import LayerWeights, Weights
from .shape import Shape, shape_of

HEAD = "lm_head.weight"


class FileStored:
    """Tensors stored in GGUF files."""

    def __init__(self, header: Header, device: torch.device, dtype: torch.dtype) -> None:
        """header: of files that hold what their config asks for (zoo/gguf_folder.py)."""
        self._header, self._device, self._dtype = header, device, dtype
        self._names = names_of(header)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, dequantised."""
        own = below(self._names, prefix)
        return {name: self.one(prefix + name) for name in own}

    def has(self, name: str) -> bool:
        return name in self._names

    def under(self, prefix: str) -> Callable[[str], Tensor | None]:
        """Tensors by their names behind a prefix; None where there is none."""
        return lambda name: self.one(prefix + name) if self.has(prefix + name) else None

    def one(self, name: str) -> Tensor:
        return self._numbers(self._names[name]).to(self._device, self._dtype)

    def _numbers(self, own: str) -> Tensor:
        """Float32; of a matrix by the kernels where they are loaded, which takes seconds less."""
        kind, shape = self._header.tensors[own].kind, self._header.tensors[own].shape
        if len(shape) == 2 and loaded() and torch.ops.draftpick.file_bytes(kind, *shape) >= 0:
            blocks = to_file_blocks([self._rows(own)])
            assert blocks is not None
            return blocks.rows(torch.arange(blocks.outputs))
        return read(self._header, own)

    def _rows(self, own: str) -> FileRows:
        stored = self._header.tensors[own]
        return FileRows(rows(self._header, own), stored.kind, stored.shape[-1])

    def experts(self, *names: str) -> Matrix:
        """Matrices of these of each expert, below each other; dense where the kernels have no
        such blocks."""
        owns = [self._names[name] for name in names]
        count = self._header.tensors[owns[0]].shape[0]
        whole = [self._rows(own) for own in owns]
        apart = ([replace(w, rows=part) for part in w.rows.chunk(count)] for w in whole)
        parts = zip(*apart, strict=True)
        found = to_file_blocks([each for expert in parts for each in expert])
        if found is not None:
            return found
        return torch.cat([self.one(name) for name in names], 1).flatten(0, 1)

    def matrix(self, *names: str, order: Sequence[int] | None = None) -> Matrix:
        """These below each other; in bfloat16 where the kernels have no such blocks. order: of the
        rows of one, where they stand in another."""
        parts = [self._rows(self._names[name]) for name in names]
        if order is not None:
            (one,) = parts
            parts = [replace(one, rows=one.rows[order])]
        found = to_file_blocks(parts)
        if found is not None:
            return found
        dense = torch.cat([self.one(name) for name in names])
        return in_blocks(dense if order is None else dense[order])


def as_it_is(
    kinds: Sequence[int], stored: FileStored, family: Family, order: Sequence[int] | None
) -> Weights:
    """What multiplies stays in the file's blocks; a head of its own too, and the embedding, whose
    rows are read out of them.

    kinds: of the layers.
    order: as of `order_of`.
    """

    def layer(number: int, kind: int) -> LayerWeights:
        prefix = f"layers.{number}."
        of = stored.under(prefix), stored.matrix, stored.experts
        return _layer(*of, prefix, family, kind, order)

    layers = [layer(*each) for each in enumerate(kinds)]
    embedding = stored.matrix("embed_tokens.weight")
    tied = not stored.has("lm_head.weight")
    head = embedding if tied else stored.matrix("lm_head.weight")
    if not isinstance(embedding, FileBlocks):
        embedding = stored.one("embed_tokens.weight")
    return Weights(embedding, layers, stored.one("norm.weight"), head, tied)


def _layer(
    one: Callable[[str], Tensor | None],
    matrix: Callable[..., Matrix],
    experts: Callable[..., Matrix],
    prefix: str,
    family: Family,
    kind: int,
    order: Sequence[int] | None,
) -> LayerWeights:
    """one: a tensor by its name behind `prefix`, None where there is none. matrix: those of these
    whole names below each other. experts: likewise, of each expert. order: as of `order_of`."""

    def whole(*names: str) -> Matrix:
        return matrix(*(f"{prefix}{name}.weight" for name in names))

    def several(*names: str) -> Matrix:
        own = (name.replace("mlp.", "mlp.experts.") for name in names)
        return experts(*(f"{prefix}{name}.weight" for name in own))

    def norm(name: str | None) -> Tensor | None:
        return None if name is None else one(name)

    biases = [one(f"{name}.bias") for name in family.qkv]
    router = one("mlp.gate.weight") if family.experts else None
    gates = [one(f"mlp.experts.{part}_proj.bias") for part in ("gate", "up")]
    mlp = whole if router is None else several
    norms = [one(f"self_attn.{name}_norm.weight") for name in "qk"]
    return LayerWeights(
        attention_norm=norm(family.norms.attention),
        qkv=matrix(*(f"{prefix}{name}.weight" for name in family.qkv), order=order),
        qkv_bias=_joined(biases, torch.cat),
        head_norms=_joined(norms, torch.stack if family.head_norms == "each" else torch.cat),
        out=whole("self_attn.o_proj"),
        attention_out_norm=norm(family.norms.attention_out),
        mlp_norm=norm(family.norms.mlp),
        gate_up=mlp(*family.gate_up),
        down=mlp("mlp.down_proj"),
        router=router,
        out_bias=one("self_attn.o_proj.bias"),
        sinks=one("self_attn.sinks"),
        router_bias=one("mlp.gate.bias"),
        gate_up_bias=_joined(gates, partial(torch.cat, dim=1)),
        down_bias=one("mlp.experts.down_proj.bias"),
        mlp_out_norm=norm(family.norms.mlp_out),
        kind=kind,
    )


def _joined(parts: Sequence[Tensor | None], how: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return how(there) if there else None


def layer_of(
    stored: dict[str, Tensor], family: Family, kind: int = 0, order: Sequence[int] | None = None
) -> LayerWeights:
    """One layer of a transformers state dict, by the names of its parts. order: as of
    `order_of`."""
    stored = {family.usual(name): tensor for name, tensor in stored.items()}
    if family.joint:
        stored = _taken_apart(stored)

    def one(name: str) -> Tensor | None:
        found = stored.get(name)
        return found + 1 if family.norms_from_one and found is not None else found

    def matrix(*names: str, order: Sequence[int] | None = None) -> Tensor:
        whole = torch.cat([stored[name] for name in names])
        return whole if order is None else whole[order]

    def experts(*names: str) -> Tensor:
        count = len(stored["mlp.gate.weight"])
        if names[0] in stored:  # joined
            return torch.cat([stored[name] for name in names], 1).flatten(0, 1)
        whole = [name.replace("experts.", f"experts.{i}.") for i in range(count) for name in names]
        return matrix(*whole)

    return _layer(one, matrix, experts, "", family, kind, order)


def _taken_apart(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer whose experts are `joint`, by the usual names."""
    made = {name: each for name, each in stored.items() if ".experts." not in name}
    for end, kept in (("", "weight"), ("_bias", "bias")):
        both = stored[f"mlp.experts.gate_up_proj{end}"]
        parts = {"gate": both[..., 0::2], "up": both[..., 1::2]}
        for name, part in {**parts, "down": stored[f"mlp.experts.down_proj{end}"]}.items():
            made[f"mlp.experts.{name}_proj.{kept}"] = part.mT if part.dim() == 3 else part
    return made


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
    shape, family, order = shape_of(config), family_of(config), order_of(config)
    _, kinds = attention_of(config)
    if rounding == "file":
        if header is None:
            raise DraftpickError(f"{folder.name} is no GGUF file; use another --dtype")
        return shape, as_it_is(kinds, FileStored(header, device, dtype), family, order)
    stored: Stored | FileStored
    if header is None:
        stored = Stored(folder, device, dtype, needed(config))
    else:
        stored = FileStored(header, device, dtype)
        family = replace(family, norms_from_one=False, joint=False)  # a file has neither
    how = layout(rounding, blocked, by)
    layers = [
        packed_layer(layer_of(stored.tensors(f"layers.{i}."), family, kind, order), how)
        for i, kind in enumerate(kinds)
    ]
    embedding, norm = (stored.tensors(f"{name}.")["weight"] for name in ("embed_tokens", "norm"))
    head = stored.tensors("lm_head.").get("weight", embedding)
    if head is not embedding and torch.equal(head, embedding):  # as some tools save a tied one
        head = embedding
    norm = norm + 1 if family.norms_from_one else norm
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
    """One layer, its four matrices laid out so; but experts stay as they are."""
    w = replace(w, qkv=how(w.qkv), out=how(w.out))
    return w if w.router is not None else replace(w, gate_up=how(w.gate_up), down=how(w.down))


def packed_head(
    head: Matrix, rounding: Rounding | None, blocked: bool = False, by: Rounder | None = None
) -> Matrix:
    """Pack the head as `layout` says, but not below int8 (docs/notes/performance.md)."""
    return layout(rounding and "int8", blocked, by)(head)
