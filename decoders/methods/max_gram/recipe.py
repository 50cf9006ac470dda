"""Max-Gram: prompt lookup, which copies what followed the longest earlier match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.model_name import ModelName

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class MaxGramRecipe(DraftingRecipe):
    """Prompt lookup, in transformers `prompt_lookup_num_tokens` (here `length`) and
    `max_matching_ngram_size` (here `longest`).

    drafter: a table of next tokens for where nothing matches, or none.
    shortest, longest: tokens of the matches looked for.
    earliest: take the first match instead of the latest.
    stop_below: end the draft where its chance of being accepted whole is below this (0: always k
        tokens).
    by_cost: end it instead where, by the same chances, the passes give the most tokens a
        second; where what they cost was not measured, stop_below holds.
    """

    kind: Literal["max_gram"] = "max_gram"
    drafter: ModelName | None = None
    shortest: Annotated[int, Field(ge=1)] = 2
    longest: Annotated[int, Field(ge=1, le=64)] = 12
    earliest: bool = False
    stop_below: Annotated[float, Field(ge=0, lt=1)] = 0.0
    by_cost: bool = False
    copies: ClassVar[bool] = True

    @property
    def uses_cost_model(self) -> bool:
        return self.by_cost or super().uses_cost_model

    @model_validator(mode="after")
    def _in_order(self) -> MaxGramRecipe:
        if self.longest < self.shortest:
            raise ValueError("`longest` must not be below `shortest`")
        if self.length.min_confidence:
            raise ValueError("length.min_confidence: a copy has no confidence; give `stop_below`")
        return self

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import folder_of
        from .next_token_table import FILE

        if self.drafter is not None:
            folder_of(self.name, self.drafter, FILE)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...costs.passes import known
        from ...models.drafts import folder_of
        from ...protocols import EncoderDecoder
        from .drafter import MaxGramDrafter
        from .next_token_table import FILE, NextTokenTable

        table = None
        if self.drafter is not None:
            folder = folder_of(self.name, self.drafter, FILE)
            table = NextTokenTable.load(folder, target.vocab_size)
        return MaxGramDrafter(
            target.device,
            table,
            self.shortest,
            self.longest,
            self.earliest,
            self.stop_below,
            source_apart=isinstance(target, EncoderDecoder),
            passes=known(target) if self.by_cost else None,
        )
