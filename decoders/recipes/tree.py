"""A draft model that offers several tokens at a position (D17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ..tree_shape import TreeShape
from .neural import DraftModelRecipe

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..drafters import Drafter

MOST_NODES = 256


class TreeRecipe(DraftModelRecipe):
    """drafter: as for `neural`. branch: children at the leading depths, one after them; `length` is
    the depth. every: all nodes of a depth have children, else only the likeliest one."""

    kind: Literal["tree"] = "tree"
    branch: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(min_length=1)]
    every: bool = False

    @model_validator(mode="after")
    def _in_bounds(self) -> TreeRecipe:
        if self.verifier.rule != "lossless":
            raise ValueError("a tree is verified losslessly; leave `verifier` out")
        if len(self.branch) > self.length.k:
            raise ValueError(
                f"`branch` has {len(self.branch)} depths, but `length` ends the draft after "
                f"{self.length.k}; shorten one or raise the other"
            )
        nodes = self.shape.nodes(self.length.k)
        if nodes > MOST_NODES:
            raise ValueError(
                f"the tree has {nodes} nodes, more than {MOST_NODES}; lower `branch` or `length`"
            )
        return self

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.branch, self.every)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..backends.tree import require_trees
        from ..drafters import TreeDrafter

        require_trees(self.name, target, "a target")
        model, vocab = self.load_model(target, tokenizer)
        if self.every:
            require_trees(self.name, model, "a drafter")
        return TreeDrafter(model, vocab, self.shape, target.context)
