"""Copying or a model's draft, whichever promises more in each round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.length import Length, LengthRecipe
from ...recipes.nested import Nested, words

if TYPE_CHECKING:
    from ...protocols import Backend, Drafter


class HybridRecipe(DraftingRecipe):
    """model: the drafter for where copying promises less; its `length` is not used.
    shortest, longest: tokens of the matches that are copied after, as for `max_gram`.
    suffix: copy as `kind: suffix` does, from earlier answers too; `longest` is not used.
    draft_cost: of a token that the model drafts, in passes of the target over one token; left out,
        it is measured for a draft model of its own and 0.06 for what runs on the target's states.
    length: a bound on either's draft.
    """

    kind: Literal["hybrid"] = "hybrid"
    model: Nested
    shortest: Annotated[int, Field(ge=1)] = 2
    longest: Annotated[int, Field(ge=1, le=64)] = 12
    suffix: bool = False
    draft_cost: Annotated[float, Field(ge=0)] | None = None
    length: Length = LengthRecipe(k=16)
    uses_cost_model: ClassVar[bool] = True
    copies: ClassVar[bool] = True

    @model_validator(mode="after")
    def _possible(self) -> HybridRecipe:
        if self.model.copies:
            raise ValueError("model: give a drafter that does not copy; the copying is built in")
        if self.suffix and not 2 <= self.shortest <= 16:
            raise ValueError("shortest: with `suffix: true` give 2 to 16")
        if self.longest < self.shortest:
            raise ValueError("`longest` must not be below `shortest`")
        if self.length.min_confidence:
            raise ValueError("length.min_confidence: a copy has no confidence; leave it out")
        return self

    @property
    def reads_earlier(self) -> bool:
        return self.suffix or super().reads_earlier

    @property
    def on_target(self) -> bool:
        return self.model.on_target

    @property
    def drafter(self) -> str:
        return f"copies, or {words(self.model)}"

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...costs.pass_costs import PassCosts
        from ...costs.passes import draft_cost, in_turn, known
        from ...protocols import EncoderDecoder
        from ..max_gram.copying import CopyChances
        from ..max_gram.drafter import MaxGramDrafter
        from ..suffix.recipe import suffix_drafter
        from .drafter import Copying, HybridDrafter

        passes = known(target) or PassCosts((1.0,) * (self.length.longest + 1))
        copying: Copying
        if self.suffix:
            copying = suffix_drafter(target, self.shortest, self.length.longest)
        else:
            copying = MaxGramDrafter(
                target.device,
                shortest=self.shortest,
                longest=self.longest,
                source_apart=isinstance(target, EncoderDecoder),
                passes=passes,
                chances=CopyChances(),
            )
        model = self.model.named(self.name).make_drafter(target, tokenizer)
        cost = draft_cost(model, target) if self.draft_cost is None else self.draft_cost
        return HybridDrafter(copying, model, passes, cost, in_turn(model, target))
