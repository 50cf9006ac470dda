"""The models that a recipe names: find them, and check that they fit the target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..backends.config import text_config_of
from ..backends.cuda import fused
from ..backends.gguf.folder import saved_header
from ..backends.native import LlamaBackend
from ..backends.weights.packed import Rounding
from ..common.errors import DraftpickError
from ..common.shared_weights import Shared
from ..protocols import Backend, EncoderDecoder, SharingBackend
from ..records import Prefilled
from ..sampling.draft_vocab import DraftVocab
from ..zoo.catalogue import shipped_folders, verify_files
from . import targets
from .loaders import is_encoder_decoder
from .precision import precision_of


class MappedBackend:
    """What the model cannot say has logit -inf. It reads any target id; what it does not know is
    its "other". Drafters map on their own and so never widen a row; a model that verifies needs
    its whole distribution in the target's ids.
    """

    def __init__(self, backend: Backend, vocab: DraftVocab) -> None:
        self.backend, self.vocab = backend, vocab
        self.vocab_size = vocab.target_vocab
        self.parameters, self.context = backend.parameters, backend.context
        self.device, self.dtype = backend.device, backend.dtype

    @property
    def length(self) -> int:
        return self.backend.length

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        ids = torch.tensor(prompt_ids, dtype=torch.int64, device=self.device)
        read = self.backend.prefill(self.vocab.from_target[ids].tolist())
        return Prefilled(self._widened(read.logits), read.embedding, read.prefill_s)

    def extend(self, ids: Tensor) -> Tensor:
        return self._widened(self.backend.extend(self.vocab.from_target[ids]))

    def truncate(self, length: int) -> None:
        self.backend.truncate(length)

    def _widened(self, logits: Tensor) -> Tensor:
        """[..., N] over draft ids -> [..., V] over target ids."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        wide[..., self.vocab.to_target] = logits[..., : self.vocab.size - 1]
        return wide


def folder_of(arm: str, drafter: str, *needed: str) -> Path:
    """A shipped name, a local folder or a hub id, whose folder holds the files `needed`."""
    shipped, local = shipped_folders(), Path(drafter).expanduser()
    if drafter in shipped:
        folder = shipped[drafter]
        verify_files(folder)
    elif local.is_dir():
        folder = local
    else:
        try:
            folder = targets.resolve(drafter)
        except DraftpickError as error:
            raise DraftpickError(f"arm {arm!r}: {error}") from error
    for name in needed:
        if not (folder / name).is_file():
            raise DraftpickError(
                f"arm {arm!r}: {folder} holds no {name}; it wants the model/ folder that "
                "`draftpick align` wrote for an arm of this kind"
            )
    if folder == local and (local / "card.json").is_file():
        verify_files(local)
    return folder


@dataclass(frozen=True)
class TargetInfo:
    """What a drafter must have in common with its target, loaded or not.

    tokenizer: the target's, None where it is not known.
    layers: the target's, or its decoder's; None likewise.
    in_layers: whether it runs them apart.
    state_size: of its final states; None where it is not known.
    """

    vocab_size: int
    encoder_decoder: bool
    tokenizer: Any
    layers: int | None = None
    in_layers: bool = True
    state_size: int | None = None

    @classmethod
    def of(cls, target: Backend, tokenizer: Any) -> TargetInfo:
        return cls(target.vocab_size, isinstance(target, EncoderDecoder), tokenizer)

    @classmethod
    def of_folder(cls, target: Path, tokenizer: Any, backend: str = "auto") -> TargetInfo:
        """backend: that it will be loaded with."""
        return cls(
            _vocab_size(target),
            is_encoder_decoder(target),
            tokenizer,
            targets.layers_of(target),
            targets.runs_layers(target, backend),
            targets.state_size_of(target),
        )


def fitting(arm: str, drafter: str, reading: TargetInfo) -> tuple[Path, DraftVocab | None]:
    """The folder of a draft model, and its part of the target's vocabulary if it has not all of it.
    Raises DraftpickError where there is no such model or it does not fit."""
    folder = folder_of(arm, drafter, "config.json")
    require_same_kind(arm, folder, reading)
    vocab = draft_vocab_of(arm, folder, reading.vocab_size)
    if vocab is None and not same_tokenizer(folder, reading):
        raise DraftpickError(
            f"arm {arm!r}: {folder.name} has another tokenizer than the target; draft "
            "tokens would mean other words. Use a drafter of the target's family, or align one "
            "with `draftpick align`"
        )
    return folder, vocab


def require_same_kind(arm: str, folder: Path, reading: TargetInfo) -> None:
    """Drafter and target count the same positions: both are encoder-decoders, or neither is."""
    kinds = {True: "an encoder-decoder", False: "decoder-only"}
    theirs, ours = is_encoder_decoder(folder), reading.encoder_decoder
    if theirs != ours:
        raise DraftpickError(
            f"arm {arm!r}: {folder.name} is {kinds[theirs]} and the target is {kinds[ours]}; use "
            "a drafter of the target's kind and tokenizer"
        )


def draft_vocab_of(arm: str, folder: Path, target_vocab: int) -> DraftVocab | None:
    """The folder's reduced vocabulary, if it has one; it must have been made for this target's."""
    vocab = DraftVocab.load(folder)
    if vocab is not None and vocab.target_vocab != target_vocab:
        raise DraftpickError(
            f"arm {arm!r}: its drafter was made for a target vocabulary of "
            f"{vocab.target_vocab}, this target has {target_vocab}; align one with "
            "`draftpick align --target ...`"
        )
    return vocab


def require_layers(arm: str, has: bool) -> None:
    """has: whether the target's layers can be run apart. Raises DraftpickError."""
    if not has:
        raise DraftpickError(
            f"arm {arm!r}: leaving early needs the native backend, which this target does not fit "
            "or --backend hf has switched off, or a T5-like target; choose another arm"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A draft model that fits the target, found and checked but not loaded.

    vocab: the part of the target's vocabulary that it has, None for all of it.
    """

    folder: Path
    vocab: DraftVocab | None
    target: Backend

    def load(self) -> tuple[Backend, DraftVocab | None]:
        """The model, with a cache of its own, and what it can say of the target's vocabulary."""
        backend = load_for(self.folder, self.target)
        passes = self.target.recorded if isinstance(self.target, LlamaBackend) else None
        if passes is not None and isinstance(backend, LlamaBackend) and backend.recordable:
            fits = fused.unsupported_reason(backend.shape, backend.weights) is None
            backend.record_passes(passes.record, fuse=passes.fused is not None and fits)
        return backend, self.vocab or common_vocab(backend, self.target)

    def load_verifier(self) -> Backend:
        """The same in the target's ids, for a model that verifies."""
        backend, vocab = self.load()
        return backend if vocab is None else MappedBackend(backend, vocab)


def find(arm: str, drafter: str, target: Backend, tokenizer: Any) -> Checkpoint:
    """Raises DraftpickError where there is no such model or it does not fit the target."""
    folder, vocab = fitting(arm, drafter, TargetInfo.of(target, tokenizer))
    return Checkpoint(folder, None if vocab is None else vocab.to(target.device), target)


_LOADED: Shared[Backend] = Shared()


def load_for(folder: Path, target: Backend) -> Backend:
    """A checkpoint that another drafter holds lends its weights; the cache is never shared, and has
    no more room than the target's."""
    device, dtype, context = target.device, target.dtype, target.context
    rounding = _own_rounding(folder, target)
    key = (folder, targets.fingerprint(folder), device, dtype, rounding)
    loaded = _LOADED.get(key)
    if isinstance(loaded, SharingBackend):
        made = loaded.sharing_weights(context)
    else:
        made = targets.load_backend(folder, device, dtype, rounding=rounding, context=context)
    return _LOADED.add(key, made)


def _own_rounding(folder: Path, target: Backend) -> Rounding | None:
    """A GGUF file's own blocks beside a target in bfloat16 or rounded, None of other models."""
    if target.dtype != torch.bfloat16 or saved_header(folder) is None:
        return None
    return "file" if precision_of("auto", folder, target.device, "auto") == "file" else None


def same_tokenizer(folder: Path, reading: TargetInfo) -> bool:
    """Whether a model means what the target does by every id, as far as the files tell."""
    if (folder / "tokenizer.json").is_file() and reading.tokenizer is not None:
        return _same_vocab(folder, tokenizer_stamp(folder), reading.tokenizer)
    return _vocab_size(folder) == reading.vocab_size


def tokenizer_stamp(folder: Path) -> int:
    """Another number once a folder's tokenizer.json has changed."""
    return (folder / "tokenizer.json").stat().st_mtime_ns


@lru_cache(maxsize=8)  # every slot of every arm asks, and 150 thousand tokens take seconds
def _same_vocab(folder: Path, stamp: int, tokenizer: Any) -> bool:
    same: bool = targets.load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    return same


def _vocab_size(folder: Path) -> int:
    size = text_config_of(folder).get("vocab_size")
    if size is None:
        raise DraftpickError(
            f"{folder.name}: its config.json has no `vocab_size`; save it again with "
            "transformers' save_pretrained"
        )
    return int(size)


def common_vocab(drafter: Backend, target: Backend) -> DraftVocab | None:
    """One tokenizer, heads padded differently: what both can say. None where nothing differs."""
    if drafter.vocab_size == target.vocab_size:
        return None
    common = list(range(min(drafter.vocab_size, target.vocab_size)))
    vocab = DraftVocab(common, target.vocab_size).to(target.device)
    vocab.from_target.clamp_(max=drafter.vocab_size - 1)  # no row of its own for "other"
    return vocab
