"""The target's own first layers as drafter (D18)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DraftpickError
from .base import DraftingRecipe

if TYPE_CHECKING:
    from pathlib import Path

    from ..backends.base import Backend, ExitBackend
    from ..backends.exit_head import ExitHead
    from ..draft_vocab import DraftVocab
    from ..drafters import Drafter


class EarlyExitRecipe(DraftingRecipe):
    """drafter: an exit adapter, a shipped name or a local folder."""

    kind: Literal["early_exit"] = "early_exit"
    drafter: str

    @property
    def on_target(self) -> bool:
        return True

    def prepare(self, target: Backend) -> None:
        """A target that cannot have an exit is left alone: the arm says so when it is asked for,
        the others work."""
        from ..backends.exit_head import ADAPTER
        from ..backends.hf_seq2seq import HFSeq2SeqBackend
        from ..backends.llama import LlamaBackend
        from .checkpoints import folder_of

        if isinstance(target, LlamaBackend):
            layers = target.shape.layers
        elif isinstance(target, HFSeq2SeqBackend):
            layers = target.layers
        else:
            return
        folder = folder_of(self.name, self.drafter, ADAPTER)
        config = json.loads((folder / "config.json").read_text())
        if config["exit_layer"] < layers:
            target.open_exit(config["exit_layer"])

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..backends.base import ExitBackend
        from ..backends.exit_head import ADAPTER
        from ..drafters import EarlyExitDrafter
        from .checkpoints import draft_vocab_of, folder_of

        if not isinstance(target, ExitBackend):
            raise DraftpickError(
                f"arm {self.name!r}: an early exit needs the native backend, which this target "
                "does not fit or --backend hf has switched off, or a T5-like target; choose "
                "another arm"
            )
        folder = folder_of(self.name, self.drafter, ADAPTER)
        vocab = draft_vocab_of(self.name, folder, target)
        try:
            return EarlyExitDrafter(target, _head(folder, target, vocab))
        except ValueError as error:
            raise DraftpickError(f"arm {self.name!r}: {error}") from error


def _head(folder: Path, target: ExitBackend, vocab: DraftVocab | None) -> ExitHead:
    from ..backends.early_exit import Adapter, AdapterHead
    from ..backends.hf_seq2seq import HFSeq2SeqBackend
    from ..backends.llama import LlamaBackend
    from ..backends.seq2seq_exit import LensHead, load_lens

    if isinstance(target, LlamaBackend):
        return AdapterHead(target, Adapter.load(folder, target), vocab)
    assert isinstance(target, HFSeq2SeqBackend)
    return LensHead(target, load_lens(folder, target), vocab)
