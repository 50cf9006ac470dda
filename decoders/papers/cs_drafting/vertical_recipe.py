"""A draft model that verifies what a cheaper one drafts (D14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.model_name import ModelName
from ...recipes.nested import Nested, require_verifiable, words

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class VerticalRecipe(DraftingRecipe):
    """review: the middle model, which verifies: a shipped name, a local transformers folder or a
        hub id.
    inner: what drafts for it; its `length` is the tokens of one such draft.
    lenience: how far the middle model accepts drafts that it would not write itself; 1 not at all.
    length: tokens shown to the target.
    """

    kind: Literal["vertical"] = "vertical"
    review: ModelName
    inner: Nested
    lenience: Annotated[float, Field(ge=1)] = 1.0

    @model_validator(mode="after")
    def _possible(self) -> VerticalRecipe:
        require_verifiable("inner", self.inner, self.length)
        return self

    @property
    def drafter(self) -> str:
        return f"{self.review} verifying {words(self.inner)}"

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import fitting

        fitting(self.name, self.review, target)
        super().check_target(target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.drafts import find
        from .vertical import VerticalDrafter

        middle = find(self.name, self.review, target, tokenizer)
        inner = self.inner.named(self.name).make_drafter(target, tokenizer)
        length = self.inner.length.build()
        return VerticalDrafter(middle.load_verifier(), inner, length, self.lenience)
