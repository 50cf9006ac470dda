"""Three models: the small one drafts for the middle one, that one for the target (D13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from ...recipes.base import DraftingRecipe
from ...recipes.model_name import ModelName
from ...recipes.nested import Nested, require_verifiable, words

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter


class HierarchyRecipe(DraftingRecipe):
    """small: what drafts first; without a `length` of its own it takes the arm's.
    middle: the model that verifies them losslessly and then writes on alone, a shipped name, a
        local transformers folder or a hub id.
    """

    kind: Literal["hierarchy"] = "hierarchy"
    small: Nested
    middle: ModelName

    @model_validator(mode="after")
    def _possible(self) -> HierarchyRecipe:
        require_verifiable("small", self.small, self.length)
        if self.length.k < 2:
            raise ValueError("length.k: give at least 2, as the middle model adds a token itself")
        return self

    @property
    def drafter(self) -> str:
        return f"{self.middle} after {words(self.small)}"

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import fitting

        fitting(self.name, self.middle, target)
        super().check_target(target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.drafts import find
        from .vertical import VerticalDrafter

        middle = find(self.name, self.middle, target, tokenizer)
        small = self.small.named(self.name).make_drafter(target, tokenizer)
        own = "length" in self.small.model_fields_set
        length = self.small.length if own else self.length
        return VerticalDrafter(middle.load_verifier(), small, length.build(), writes_on=True)
