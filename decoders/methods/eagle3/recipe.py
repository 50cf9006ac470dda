"""An EAGLE-3 head over the target's states after three of its layers (D28)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from ...common.errors import DraftpickError
from ...recipes.base import DraftingRecipe
from ...recipes.mistakes import naming
from ...recipes.model_name import ModelName
from ...sampling.tree_shape import TreeShape
from ..tree.recipe import Branch, require_bounds, widened

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class Eagle3Recipe(DraftingRecipe):
    """drafter: a head's folder or hub id, in the form of the package `speculators` or of the EAGLE
        authors.
    branch: children at the leading drafted positions, for the target to verify as a tree.
    every: all nodes of a depth have children, else only the most likely one.
    """

    kind: Literal["eagle3"] = "eagle3"
    drafter: ModelName
    branch: Branch = ()
    every: bool = False

    @model_validator(mode="after")
    def _in_bounds(self) -> Eagle3Recipe:
        if self.branch:
            require_bounds(TreeShape(self.branch, self.every), self.length.longest)
        elif self.every:
            raise ValueError("every: it is for trees; give `branch`, for instance [3, 2]")
        return self

    @property
    def branches(self) -> bool:
        return bool(self.branch)

    @property
    def doubts(self) -> bool:
        return True

    def check_target(self, target: TargetInfo) -> None:
        from .config import Eagle3Config
        from .head import require_fit

        with naming(self.name):
            if target.encoder_decoder:
                raise ValueError("it drafts for decoder-only targets; choose another arm")
            config = Eagle3Config.of(self._folder())
            require_fit(config, target.state_size, target.vocab_size, target.layers)

    def prepare(self, target: Backend) -> None:
        """Have the target keep its states; where it cannot, the arm raises when it is asked for."""
        from .config import Eagle3Config
        from .model import Eagle3Target

        if isinstance(target, Eagle3Target):
            with suppress(DraftpickError, ValueError):
                for layer in Eagle3Config.of(self._folder()).feature_layers(target.layers):
                    target.open_exit(layer)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...backends.llama.tree import require_trees
        from ...requests.context import sit
        from ..tree.drafter import TreeDrafter
        from .drafter import Eagle3Drafter
        from .head import Eagle3Head
        from .model import Eagle3Backend, Eagle3Target

        if not isinstance(target, Eagle3Target):
            raise DraftpickError(
                f"arm {self.name!r}: an EAGLE-3 head reads the states after some of the target's "
                f"layers, which {type(target).__name__} does not return; choose another arm"
            )
        with naming(self.name):
            head = Eagle3Head.load(self._folder(), target, target.layers)
            model = Eagle3Backend(target, head)
        sit(model, target)
        if not self.every:
            return widened(self.name, Eagle3Drafter(model), self.branch, target)
        require_trees(self.name, target, "a target")
        later = self.length.longest + 2
        return TreeDrafter(model, head.vocab, self.branch, target.context, later)

    def _folder(self) -> Path:
        from ...models.drafts import folder_of

        return folder_of(self.name, self.drafter, "config.json")
