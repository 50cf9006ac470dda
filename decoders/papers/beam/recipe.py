"""Beam search, drafted or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ...methods.neural.recipe import NeuralRecipe
from ...recipes.base import ArmRecipe
from ...recipes.length import Length, LengthRecipe
from ...recipes.nested import Nested

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Strategy
    from ...records import Request


class BeamRecipe(ArmRecipe):
    """Beam search.

    beams, length_penalty: as in transformers, whose `early_stopping` is False here.
    drafter: a neural one that searches ahead, `length` steps a round, keeping `width` continuations
        a step (default: twice the beams); none for one step a pass.
    """

    kind: Literal["beam"] = "beam"
    beams: Annotated[int, Field(ge=1, le=32)]
    length_penalty: float = 1.0
    drafter: NeuralRecipe | None = None
    length: Length = LengthRecipe()
    width: Annotated[int, Field(ge=1, le=64)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> BeamRecipe:
        if self.drafter is None and {"length", "width"} & self.model_fields_set:
            raise ValueError(
                "`length` and `width` are a drafter's; name a `drafter` or leave both out"
            )
        if self.drafter is not None and {"length", "verifier"} & self.drafter.model_fields_set:
            raise ValueError("give `length` to the arm, not to its drafter, and no `verifier`")
        if self.length.min_confidence > 0:
            raise ValueError("beams are drafted without `min_confidence`; leave it out")
        if self.width is not None and self.width < self.beams:
            raise ValueError("a step with fewer drafts than beams is never accepted; raise `width`")
        return self

    @property
    def lossless(self) -> bool:
        """A search is not the target's greedy answer, except with one beam."""
        return self.beams == 1

    def check(self, request: Request) -> None:
        from .search import require_greedy

        super().check(request)
        require_greedy(self.name, request)

    def check_target(self, target: TargetInfo) -> None:
        if self.drafter is not None:
            self.drafter.named(self.name).check_same_tokenizer(target)

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ...recipes.mistakes import require_trees
        from .search import BeamDraft, BeamSearch

        require_trees(self.name, target, "a target")
        draft = None
        if self.drafter is not None:
            model, vocab = self.drafter.named(self.name).load_model(target, tokenizer)
            width = self.width or 2 * self.beams
            draft = BeamDraft(require_trees(self.name, model, "a drafter"), vocab, width)
        return BeamSearch(self.name, self.beams, self.length_penalty, self.length.build(), draft)


class SampledBeamsRecipe(ArmRecipe):
    """beams: answers that are drawn.
    drafter: a recipe of its own, with its length, that drafts for each of them.
    """

    kind: Literal["sampled_beams"] = "sampled_beams"
    beams: Annotated[int, Field(ge=1, le=32)]
    drafter: Nested

    @property
    def lossless(self) -> bool:
        """The best of several draws is distributed otherwise than one."""
        return self.beams == 1

    @property
    def uses_cost_model(self) -> bool:
        return self.drafter.uses_cost_model

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from .sampled import SampledBeams

        drafter = self.drafter.named(self.name).make_drafter(target, tokenizer)
        return SampledBeams(self.name, drafter, self.drafter.length.build(target), self.beams)
