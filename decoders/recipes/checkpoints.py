"""The files that a recipe names: found, checked, and shown to fit the target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .. import targets
from ..backends.base import Backend, EncoderDecoder
from ..backends.hf import HFBackend
from ..backends.hf_seq2seq import HFSeq2SeqBackend
from ..backends.llama import LlamaBackend
from ..backends.mapped import MappedBackend
from ..draft_vocab import DraftVocab
from ..errors import DraftpickError
from ..zoo.catalogue import shipped_folders, verify_files


def folder_of(arm: str, drafter: str, needed: str) -> Path:
    """A shipped name, a local folder that holds the file `needed`, or a hub id."""
    shipped = shipped_folders()
    if drafter in shipped:
        verify_files(shipped[drafter])
        return shipped[drafter]
    local = Path(drafter).expanduser()
    if local.is_dir():
        if not (local / needed).is_file():
            raise DraftpickError(
                f"arm {arm!r}: {local} holds no {needed}; it wants the model/ folder that "
                "`draftpick align` wrote for an arm of this kind"
            )
        if (local / "card.json").is_file():
            verify_files(local)
        return local
    try:
        return targets.resolve(drafter)
    except DraftpickError as error:
        raise DraftpickError(f"arm {arm!r}: {error}") from error


def require_same_reading(arm: str, folder: Path, target: Backend) -> None:
    """Drafter and target count the same positions: both are encoder-decoders, or neither is."""
    kinds = {True: "an encoder-decoder", False: "decoder-only"}
    theirs, ours = targets.is_encoder_decoder(folder), isinstance(target, EncoderDecoder)
    if theirs != ours:
        raise DraftpickError(
            f"arm {arm!r}: {folder.name} is {kinds[theirs]} and the target is {kinds[ours]}; use "
            "a drafter of the target's kind and tokenizer"
        )


def draft_vocab_of(arm: str, folder: Path, target: Backend) -> DraftVocab | None:
    """The folder's reduced vocabulary, if it has one; it must have been made for this target's."""
    vocab = DraftVocab.load(folder)
    if vocab is None:
        return None
    if vocab.target_vocab != target.vocab_size:
        raise DraftpickError(
            f"arm {arm!r}: its drafter was made for a target vocabulary of "
            f"{vocab.target_vocab}, this target has {target.vocab_size}; align one with "
            "`draftpick align --target ...`"
        )
    return vocab.to(target.device)


@dataclass(frozen=True)
class Checkpoint:
    """A draft model that fits the target, found and checked but not loaded. vocab: the part of the
    target's vocabulary that it has, None for all of it."""

    folder: Path
    vocab: DraftVocab | None
    target: Backend

    def load(self) -> tuple[Backend, DraftVocab | None]:
        """The model, with a cache of its own, and what it can say of the target's vocabulary."""
        backend = _load(self.folder, self.target)
        passes = getattr(self.target, "recorded", None)
        if passes is not None and isinstance(backend, LlamaBackend):
            backend.record_passes(passes.record)
        return backend, self.vocab or common_vocab(backend, self.target)

    def load_reviewer(self) -> Backend:
        """The same in the target's ids, for a model that reviews."""
        backend, vocab = self.load()
        return backend if vocab is None else MappedBackend(backend, vocab)


def find(arm: str, drafter: str, target: Backend, tokenizer: Any) -> Checkpoint:
    """Raises DraftpickError where there is no such model or it does not fit the target."""
    folder = folder_of(arm, drafter, "config.json")
    require_same_reading(arm, folder, target)
    vocab = draft_vocab_of(arm, folder, target)
    if vocab is None:
        require_same_tokenizer(arm, folder, target, tokenizer)
    return Checkpoint(folder, vocab, target)


_LOADED: WeakValueDictionary[tuple[object, ...], Backend] = WeakValueDictionary()


def _load(folder: Path, target: Backend) -> Backend:
    """A checkpoint that another drafter holds lends its weights; the cache is never shared, and has
    no more room than the target's."""
    device, dtype, context = target.device, target.dtype, target.context
    key = (folder, targets.fingerprint(folder), device, dtype)
    held = _LOADED.get(key)
    if isinstance(held, LlamaBackend):
        return LlamaBackend(held.shape, held.weights, context)
    if isinstance(held, HFBackend):
        return HFBackend(held.model, context)
    if isinstance(held, HFSeq2SeqBackend):
        return HFSeq2SeqBackend(held.model, context)
    _LOADED[key] = backend = targets.load_backend(folder, device, dtype, context=context)
    return backend


def require_same_tokenizer(arm: str, folder: Path, target: Backend, tokenizer: Any) -> None:
    """A whole-vocabulary drafter must mean the same by every id."""
    if (folder / "tokenizer.json").is_file() and tokenizer is not None:
        same = targets.load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    else:
        config = json.loads((folder / "config.json").read_text())
        same = config.get("text_config", config)["vocab_size"] == target.vocab_size
    if not same:
        raise DraftpickError(
            f"arm {arm!r}: {folder.name} has another tokenizer than the target; draft "
            "tokens would mean other words. Use a drafter of the target's family, or align one "
            "with `draftpick align`"
        )


def common_vocab(drafter: Backend, target: Backend) -> DraftVocab | None:
    """One tokenizer, heads padded differently: what both can say. None where nothing differs."""
    if drafter.vocab_size == target.vocab_size:
        return None
    common = list(range(min(drafter.vocab_size, target.vocab_size)))
    vocab = DraftVocab(common, target.vocab_size).to(target.device)
    vocab.from_target.clamp_(max=drafter.vocab_size - 1)  # no row of its own for "other"
    return vocab
