"""A recurrence over the target's final states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...common.errors import DraftpickError
from ...recipes.mistakes import naming
from ...recipes.model_name import ModelName
from ..tree.recipe import WidenedRecipe, widened

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class RecurrentRecipe(WidenedRecipe):
    """drafter: a cell trained on the target's states, a shipped name or a local folder."""

    kind: Literal["recurrent"] = "recurrent"
    drafter: ModelName

    def check_target(self, target: TargetInfo) -> None:
        from ...models.heads import recurrent_files

        with naming(self.name):
            recurrent_files(self.name, self.drafter, target.vocab_size, target.state_size)

    def prepare(self, target: Backend) -> None:
        from ...protocols import StateBackend

        if isinstance(target, StateBackend):
            target.keep_states()

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.heads import recurrent_head
        from ...protocols import StateBackend
        from .drafter import RecurrentDrafter

        if not isinstance(target, StateBackend):
            raise DraftpickError(
                f"arm {self.name!r}: a recurrent drafter needs the target's final states, "
                f"which {type(target).__name__} does not return; choose another arm"
            )
        with naming(self.name):
            head = recurrent_head(self.name, self.drafter, target)
        return widened(self.name, RecurrentDrafter(target, head), self.branch, target)
