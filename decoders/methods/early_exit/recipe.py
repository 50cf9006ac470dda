"""The target's own first layers as drafter."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...common.errors import DraftpickError
from ...recipes.mistakes import naming
from ...recipes.model_name import ModelName
from ..tree.recipe import WidenedRecipe, widened

if TYPE_CHECKING:
    from pathlib import Path

    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class EarlyExitRecipe(WidenedRecipe):
    """Give drafter or layer.

    drafter: an exit adapter, a shipped name or a local folder.
    layer: how many of the target's layers draft, read by its own norm and head, untrained.
    """

    kind: Literal["early_exit"] = "early_exit"
    drafter: ModelName | None = None
    layer: Annotated[int, Field(ge=1)] | None = None
    on_target: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one(self) -> EarlyExitRecipe:
        if (self.drafter is None) == (self.layer is None):
            raise ValueError(
                "give either `drafter`, a trained exit, or `layer`, to draft with the target's own "
                "norm and head after this number of layers"
            )
        return self

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import draft_vocab_of, require_layers
        from ...models.heads import check_exit

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
        from ...models.heads import plain_exit, trained_exit
        from ...protocols import ExitBackend
        from .drafter import EarlyExitDrafter

        require_layers(self.name, isinstance(target, ExitBackend))
        assert isinstance(target, ExitBackend)
        with naming(self.name):
            if self.layer is None:
                drafter = EarlyExitDrafter(target, trained_exit(self.name, self._folder(), target))
            else:
                drafter = EarlyExitDrafter(target, plain_exit(self.layer, target))
        return widened(self.name, drafter, self.branch, target)

    def _layer(self) -> int:
        """The layer that it leaves after."""
        if self.layer is not None:
            return self.layer
        from ...models.heads import exit_layer_of

        return exit_layer_of(self._folder())

    def _folder(self) -> Path:
        from ...models.heads import exit_folder

        assert self.drafter is not None
        return exit_folder(self.name, self.drafter)
