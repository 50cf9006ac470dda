"""SuffixDecoding: copies from the conversation and from earlier answers, by how often each token
followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.length import Length, LengthRecipe
from ..tree.recipe import MOST_NODES

if TYPE_CHECKING:
    from ...protocols import Backend, Drafter
    from .drafter import SuffixDrafter


class SuffixRecipe(DraftingRecipe):
    """Earlier answers are those of the same user and server; where none are kept, as by `draftpick
    generate`, copies are from the conversation alone.

    shortest: tokens of a match.
    width: tokens that may follow one; above 1 the drafts are trees, which the target must read.
    nodes: tokens of a tree, at most.
    by_cost: end the draft where, by the tokens' chances, the passes give the most tokens a second;
        else only where it is hopeless.
    length: a bound on the draft, of a tree on its depth.
    """

    kind: Literal["suffix"] = "suffix"
    shortest: Annotated[int, Field(ge=2, le=16)] = 2
    width: Annotated[int, Field(ge=1, le=16)] = 1
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = 16
    by_cost: bool = True
    length: Length = LengthRecipe(k=16)
    copies: ClassVar[bool] = True
    reads_earlier: ClassVar[bool] = True

    @model_validator(mode="after")
    def _without_confidence(self) -> SuffixRecipe:
        if self.length.min_confidence:
            raise ValueError("length.min_confidence: a copy has no confidence; leave it out")
        return self

    @property
    def uses_cost_model(self) -> bool:
        return self.by_cost or super().uses_cost_model

    @property
    def branches(self) -> bool:
        return self.width > 1

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...recipes.mistakes import require_trees

        if self.branches:
            require_trees(self.name, target, "a target")
        longest = self.length.longest
        return suffix_drafter(target, self.shortest, longest, self.width, self.nodes, self.by_cost)


def suffix_drafter(
    target: Backend,
    shortest: int,
    longest: int,
    width: int = 1,
    nodes: int = 1,
    by_cost: bool = True,
) -> SuffixDrafter:
    """For this target; as of the recipe. longest: tokens of a draft."""
    from ...costs.pass_costs import PassCosts
    from ...costs.passes import known
    from ...earlier.votes import Wanted
    from ...protocols import EncoderDecoder
    from ..max_gram.copying import HOPELESS
    from .drafter import SuffixDrafter

    passes = known(target) if by_cost else None
    return SuffixDrafter(
        target.device,
        passes or PassCosts((1.0,) * (max(longest, nodes) + 1)),
        Wanted(longest, shortest, width, nodes, HOPELESS),
        source_apart=isinstance(target, EncoderDecoder),
        slots=target.context,
    )
