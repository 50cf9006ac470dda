"""Several drafters in a row, the better ones first (D15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.length import LONGEST, Length, LengthRecipe
from ...recipes.nested import Nested, words

if TYPE_CHECKING:
    from ...protocols import Backend, Drafter


class HorizontalRecipe(DraftingRecipe):
    """parts: the drafters in order; the `length` of each is how many tokens it adds, and where one
        adds fewer the next makes up for it.
    length: a bound on all of them together.
    """

    kind: Literal["horizontal"] = "horizontal"
    parts: Annotated[list[Nested], Field(min_length=2)]
    length: Length = LengthRecipe(k=LONGEST)

    @model_validator(mode="after")
    def _possible(self) -> HorizontalRecipe:
        for number, part in enumerate(self.parts):
            if part.kind == "horizontal":
                raise ValueError(f"parts.{number}: list the parts of that cascade here instead")
            if part.length.kind != "fixed":
                raise ValueError(f"parts.{number}.length: give {{kind: fixed, k: ...}}")
        if self.length.min_confidence and not self.doubts:
            raise ValueError(
                "length.min_confidence: not all of the parts stop at an unsure token; set it on "
                "those that do"
            )
        if sum(part.on_target for part in self.parts) > 1:
            raise ValueError("parts: only one early exit can run on the target's layers")
        return self

    @property
    def on_target(self) -> bool:
        return any(part.on_target for part in self.parts)

    @property
    def copies(self) -> bool:
        return any(part.copies for part in self.parts)

    @property
    def doubts(self) -> bool:
        return all(part.doubts for part in self.parts)

    @property
    def uses_cost_model(self) -> bool:
        return super().uses_cost_model or any(part.uses_cost_model for part in self.parts)

    @property
    def drafter(self) -> str:
        return ", then ".join(words(part) for part in self.parts)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from .horizontal import HorizontalDrafter, Part

        return HorizontalDrafter(
            [
                Part(
                    part.named(self.name).make_drafter(target, tokenizer),
                    part.length.k,
                    part.length.min_confidence,
                )
                for part in self.parts
            ]
        )
