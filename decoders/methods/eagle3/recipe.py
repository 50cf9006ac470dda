"""An EAGLE-3 head over the target's states after three of its layers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from ...common.errors import DraftpickError
from ...recipes.mistakes import naming, require_trees
from ...recipes.model_name import ModelName
from ...sampling.tree_shape import TreeShape
from ..tree.recipe import WidenedRecipe, widened

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class Eagle3Recipe(WidenedRecipe):
    """drafter: a head's folder or hub id, in the form of the package `speculators` or of the EAGLE
        authors.
    every: all nodes of a depth have children, else only the most likely one.
    """

    kind: Literal["eagle3"] = "eagle3"
    drafter: ModelName
    every: bool = False

    @model_validator(mode="after")
    def _of_trees(self) -> Eagle3Recipe:
        if self.every and not self.branch:
            raise ValueError("every: it is for trees; give `branch`, for instance [3, 2]")
        return self

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.branch, self.every)

    def check_target(self, target: TargetInfo) -> None:
        from ...models.heads import check_eagle3

        with naming(self.name):
            if target.encoder_decoder:
                raise ValueError("it drafts for decoder-only targets; choose another arm")
            check_eagle3(self._folder(), target)

    def prepare(self, target: Backend) -> None:
        """Have the target keep its states; where it cannot, the arm raises when it is asked for."""
        from ...models.heads import prepare_eagle3

        with suppress(DraftpickError):
            prepare_eagle3(self._folder(), target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.heads import eagle3_model
        from ..neural.drafter import Eagle3Drafter
        from ..tree.drafter import TreeDrafter

        with naming(self.name):
            model = eagle3_model(self._folder(), target)
        if not self.every:
            drafter = Eagle3Drafter(model, model.head.vocab)
            return widened(self.name, drafter, self.branch, target)
        require_trees(self.name, target, "a target")
        later = self.length.longest + 2
        return TreeDrafter(model, model.head.vocab, self.branch, target.context, later)

    def _folder(self) -> Path:
        from ...models.drafts import folder_of

        return folder_of(self.name, self.drafter, "config.json")
