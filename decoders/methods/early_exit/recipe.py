"""The target's own first layers as drafter (D18)."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ...common.errors import DraftpickError
from ...recipes.base import DraftingRecipe
from ...recipes.mistakes import naming
from ...recipes.model_name import ModelName
from ...sampling.tree_shape import TreeShape
from ..tree.recipe import Branch, require_bounds, widened

if TYPE_CHECKING:
    from pathlib import Path

    from ...backends.llama.exit_head import ExitHead
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter, ExitBackend


class EarlyExitRecipe(DraftingRecipe):
    """Give drafter or layer.

    drafter: an exit adapter, a shipped name or a local folder.
    layer: how many of the target's layers draft, read by its own norm and head, untrained.
    branch: children at the leading drafted positions, for the target to verify as a tree; those
        next to the draft have none.
    """

    kind: Literal["early_exit"] = "early_exit"
    drafter: ModelName | None = None
    layer: Annotated[int, Field(ge=1)] | None = None
    branch: Branch = ()

    @model_validator(mode="after")
    def _one(self) -> EarlyExitRecipe:
        if (self.drafter is None) == (self.layer is None):
            raise ValueError(
                "give either `drafter`, a trained exit, or `layer`, to draft with the target's own "
                "norm and head after this number of layers"
            )
        if self.branch:
            require_bounds(TreeShape(self.branch), self.length.longest)
        return self

    @property
    def on_target(self) -> bool:
        return True

    @property
    def branches(self) -> bool:
        return bool(self.branch)

    @property
    def doubts(self) -> bool:
        return True

    def check_target(self, target: TargetInfo) -> None:
        from ...backends.llama.exit_head import check_exit
        from ...models.drafts import draft_vocab_of, require_layers

        require_layers(self.name, target.in_layers)
        if self.drafter is not None:
            draft_vocab_of(self.name, self._folder(), target.vocab_size)
        if target.layers is not None:
            with naming(self.name):
                check_exit(self._layer(), target.layers)

    def prepare(self, target: Backend) -> None:
        """Open the exit where the target can have it.

        Else nothing is done here: this arm raises when it is asked for, and the others work.
        """
        from ...protocols import ExitBackend

        if isinstance(target, ExitBackend):
            with suppress(DraftpickError):
                target.open_exit(self._layer())

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.drafts import require_layers
        from ...protocols import ExitBackend
        from .drafter import EarlyExitDrafter

        require_layers(self.name, isinstance(target, ExitBackend))
        assert isinstance(target, ExitBackend)
        with naming(self.name):
            head = self._trained(target) if self.layer is None else _plain(self.layer, target)
            drafter = EarlyExitDrafter(target, head)
        return widened(self.name, drafter, self.branch, target)

    def _layer(self) -> int:
        """The layer that it leaves after."""
        if self.layer is not None:
            return self.layer
        return int(json.loads((self._folder() / "config.json").read_text())["exit_layer"])

    def _folder(self) -> Path:
        from ...backends.llama.exit_head import ADAPTER
        from ...models.drafts import folder_of

        assert self.drafter is not None
        return folder_of(self.name, self.drafter, ADAPTER)

    def _trained(self, target: ExitBackend) -> ExitHead:
        from ...backends.native import LlamaBackend
        from ...models.drafts import draft_vocab_of
        from .head import AdapterHead

        folder = self._folder()
        vocab = draft_vocab_of(self.name, folder, target.vocab_size)
        vocab = None if vocab is None else vocab.to(target.device)
        if isinstance(target, LlamaBackend):
            return AdapterHead.load(folder, target, vocab)
        from ...backends.transformers.hf_seq2seq import HFSeq2SeqBackend  # transformers' models
        from ...backends.transformers.seq2seq_exit import LensHead, load_lens

        if isinstance(target, HFSeq2SeqBackend):
            return LensHead(target, load_lens(folder, target), vocab)
        raise DraftpickError(
            f"{folder.name} was trained for the native backend or a T5-like target, and this one "
            f"is a {type(target).__name__}; give `layer` instead of `drafter`"
        )


def _plain(layer: int, target: ExitBackend) -> ExitHead:
    from ...backends.llama.exit_head import ReadOutHead
    from ...backends.native import LlamaBackend
    from ...protocols import LayeredBackend, StateBackend
    from .head import Adapter, AdapterHead

    if isinstance(target, LlamaBackend):
        return AdapterHead(target, Adapter.plain(target, layer), None)
    from ...backends.transformers.hf_seq2seq import HFSeq2SeqBackend  # transformers' models
    from ...backends.transformers.seq2seq_exit import LensHead, plain_lens

    if isinstance(target, HFSeq2SeqBackend):
        return LensHead(target, plain_lens(target, layer).to(target.dtype), None)
    if isinstance(target, LayeredBackend) and isinstance(target, StateBackend):
        return ReadOutHead(target, layer, target.state_size)
    raise DraftpickError(
        f"the backend {type(target).__name__} has no `read_out` (LayeredBackend) or no "
        "`state_size` (StateBackend), which an exit of its own layers needs"
    )
