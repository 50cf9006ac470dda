"""A draft model that offers several tokens at a position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...sampling.tree_shape import TreeShape
from ..neural.recipe import DraftModelRecipe

if TYPE_CHECKING:
    from ...protocols import Backend, Drafter

MOST_NODES = 256
Branch = tuple[Annotated[int, Field(ge=1, le=64)], ...]


def require_bounds(shape: TreeShape, depths: int) -> None:
    """Check a tree of a given depth. Raises ValueError."""
    if len(shape.branch) > depths:
        raise ValueError(
            f"`branch` has {len(shape.branch)} depths, but a draft ends after {depths}; shorten "
            "the one or lengthen the other"
        )
    if (nodes := shape.nodes(depths)) > MOST_NODES:
        raise ValueError(
            f"the tree has {nodes} nodes, more than {MOST_NODES}; lower `branch` or shorten drafts"
        )


def widened(arm: str, drafter: Drafter, branch: tuple[int, ...], target: Backend) -> Drafter:
    """A drafter of chains with `branch` children at the leading positions, for the target to verify
    as a tree; the drafter itself where there are none."""
    from ...recipes.mistakes import require_trees
    from .widened import WidenedDrafter

    if not branch:
        return drafter
    require_trees(arm, target, "a target")
    return WidenedDrafter(drafter, branch, target.context)


class WidenedRecipe(DraftingRecipe):
    """A chain by a model that says how sure it is of each token.

    branch: children at the leading drafted positions, for the target to verify as a tree; those
        next to the draft have none.
    """

    branch: Branch = ()
    doubts: ClassVar[bool] = True

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        if self.branch:
            require_bounds(self.shape, self.length.longest)
        return self

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.branch)

    @property
    def branches(self) -> bool:
        return bool(self.branch)


class TreeRecipe(DraftModelRecipe):
    """drafter: as for `neural`.
    branch: children at the leading depths, one after them; `length` is the depth.
    every: all nodes of a depth have children, else only the most likely one.
    """

    kind: Literal["tree"] = "tree"
    branch: Annotated[Branch, Field(min_length=1)]
    every: bool = False
    branches: ClassVar[bool] = True

    @model_validator(mode="after")
    def _in_bounds(self) -> TreeRecipe:
        require_bounds(self.shape, self.length.longest)
        return self

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.branch, self.every)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...recipes.mistakes import require_trees
        from ..neural.drafter import NeuralDrafter
        from .drafter import TreeDrafter

        require_trees(self.name, target, "a target")
        model, vocab = self.load_model(target, tokenizer)
        if not self.every:
            return widened(self.name, NeuralDrafter(model, vocab), self.branch, target)
        reader = require_trees(self.name, model, "a drafter")
        return TreeDrafter(reader, vocab, self.branch, target.context)
