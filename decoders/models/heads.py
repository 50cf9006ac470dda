"""What drafts on a target's own states, loaded for one target: early exits, recurrent cells and
EAGLE-3 heads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.eagle3.config import Eagle3Config
from ..backends.eagle3.head import Eagle3Head, require_fit
from ..backends.eagle3.model import Eagle3Backend, Eagle3Target
from ..backends.exit_adapter import Adapter, AdapterHead
from ..backends.llama.exit_head import ADAPTER, AdapterConfig, ReadOutHead, check_exit
from ..backends.native import LlamaBackend
from ..backends.recurrent.cell import CELL
from ..backends.recurrent.head import RecurrentHead, require_size
from ..common.errors import DraftpickError
from ..common.tensor_files import own_config
from ..protocols import Backend, ExitBackend, LayeredBackend, StateBackend
from ..sampling.draft_vocab import FILE, DraftVocab
from .drafts import TargetInfo, draft_vocab_of, folder_of

if TYPE_CHECKING:
    from ..backends.transformers.seq2seq_exit import LensHead

__all__ = ["check_exit"]


# -- early exits -----------------------------------------------------------------------------------


def exit_folder(arm: str, drafter: str) -> Path:
    """Folder of an exit adapter, found as by `folder_of`."""
    return folder_of(arm, drafter, ADAPTER, "config.json")


def exit_layer_of(folder: Path) -> int:
    """The layer that a trained exit leaves after. Raises Damaged where its config says none."""
    return own_config(folder, AdapterConfig).exit_layer


def trained_exit(arm: str, folder: Path, target: ExitBackend) -> AdapterHead | LensHead:
    """The adapter in `folder`. Raises DraftpickError or ValueError where it was trained for another
    target."""
    vocab = draft_vocab_of(arm, folder, target.vocab_size)
    vocab = None if vocab is None else vocab.to(target.device)
    if isinstance(target, LlamaBackend):
        return AdapterHead.load(folder, target, vocab)
    from ..backends.transformers.hf_seq2seq import HFSeq2SeqBackend  # transformers' models
    from ..backends.transformers.seq2seq_exit import LensHead, load_lens

    if isinstance(target, HFSeq2SeqBackend):
        return LensHead(target, load_lens(folder, target), vocab)
    raise DraftpickError(
        f"{folder.name} was trained for the native backend or a T5-like target, and this one "
        f"is a {type(target).__name__}; give `layer` instead of `drafter`"
    )


def plain_exit(layer: int, target: ExitBackend) -> AdapterHead | ReadOutHead:
    """The target's own norm and head after so many of its layers, untrained."""
    if isinstance(target, LlamaBackend):
        return AdapterHead(target, Adapter.plain(target, layer), None)
    if isinstance(target, LayeredBackend) and isinstance(target, StateBackend):
        return ReadOutHead(target, layer, target.state_size)
    raise DraftpickError(
        f"the backend {type(target).__name__} has no `read_out` (LayeredBackend) or no "
        "`state_size` (StateBackend), which an exit of its own layers needs"
    )


# -- recurrent cells -------------------------------------------------------------------------------


def recurrent_files(
    arm: str, drafter: str, target_vocab: int, state_size: int | None = None
) -> tuple[Path, DraftVocab]:
    """A cell's folder, and its draft tokens. Raises ValueError where it was trained for states of
    another size than `state_size`."""
    folder = folder_of(arm, drafter, CELL, "config.json", FILE)
    vocab = draft_vocab_of(arm, folder, target_vocab)
    assert vocab is not None  # as its file is there
    if state_size is not None:
        require_size(folder, state_size)
    return folder, vocab


def recurrent_head(arm: str, drafter: str, target: StateBackend) -> RecurrentHead:
    """Raises as `recurrent_files`."""
    folder, vocab = recurrent_files(arm, drafter, target.vocab_size)
    return RecurrentHead.load(folder, target, vocab.to(target.device))


# -- EAGLE-3 heads ---------------------------------------------------------------------------------


def check_eagle3(folder: Path, target: TargetInfo) -> None:
    """Raises DraftpickError or ValueError where there is no head, or it was made for another
    target."""
    config = Eagle3Config.of(folder)
    require_fit(config, target.state_size, target.vocab_size, target.layers)


def prepare_eagle3(folder: Path, target: Backend) -> None:
    """Have the target keep the states that a head reads, where it can."""
    if isinstance(target, Eagle3Target):
        with suppress(DraftpickError, ValueError):
            for layer in Eagle3Config.of(folder).feature_layers(target.layers):
                target.open_exit(layer)


def eagle3_model(folder: Path, target: Backend) -> Eagle3Backend:
    """A head as a model that drafts. Raises DraftpickError or ValueError where it does not fit."""
    if not isinstance(target, Eagle3Target):
        raise DraftpickError(
            "an EAGLE-3 head reads the states after some of the target's layers, which "
            f"{type(target).__name__} does not return; choose another arm"
        )
    return Eagle3Backend(target, Eagle3Head.load(folder, target, target.layers))
