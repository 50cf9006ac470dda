"""Copying what followed the longest earlier match (D16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import DraftingRecipe

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..drafters import Drafter


class MaxGramRecipe(DraftingRecipe):
    """drafter: a bigram table for where nothing matches, or none. shortest, longest: the n-grams
    looked for. earliest: take the first match instead of the latest."""

    kind: Literal["max_gram"] = "max_gram"
    drafter: str | None = None
    shortest: Annotated[int, Field(ge=1)] = 2
    longest: Annotated[int, Field(ge=1, le=64)] = 12
    earliest: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> MaxGramRecipe:
        if self.longest < self.shortest:
            raise ValueError("`longest` must not be below `shortest`")
        return self

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..backends.base import EncoderDecoder
        from ..drafters import MaxGramDrafter
        from ..drafters.max_gram import TABLE, load_table
        from .checkpoints import folder_of

        table = None
        if self.drafter is not None:
            table = load_table(folder_of(self.name, self.drafter, TABLE), target.vocab_size)
        return MaxGramDrafter(
            target.device,
            table,
            self.shortest,
            self.longest,
            self.earliest,
            source_apart=isinstance(target, EncoderDecoder),
        )
