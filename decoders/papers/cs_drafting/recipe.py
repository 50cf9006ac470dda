"""Vertical and horizontal cascades of a row of draft models, each alone and both together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ...methods.max_gram.recipe import MaxGramRecipe
from ...methods.tree.recipe import Branch, require_bounds, widened
from ...recipes.base import ArmRecipe, DraftingRecipe
from ...recipes.length import MAX_DRAFT, Length, LengthRecipe
from ...recipes.model_name import ModelName
from ...recipes.nested import Nested, refuse_by_cost, require_verifiable, words
from ...sampling.tree_shape import TreeShape

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter, Strategy


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
        from .drafters import VerticalDrafter

        middle = find(self.name, self.review, target, tokenizer)
        inner = self.inner.named(self.name).make_drafter(target, tokenizer)
        length = self.inner.length.build()
        return VerticalDrafter(middle.load_verifier(), inner, length, self.lenience)


class HorizontalRecipe(DraftingRecipe):
    """parts: the drafters in order; the `length` of each is how many tokens it adds, and where one
        adds fewer the next makes up for it.
    length: a bound on all of them together.
    """

    kind: Literal["horizontal"] = "horizontal"
    parts: Annotated[list[Nested], Field(min_length=2)]
    length: Length = LengthRecipe(k=MAX_DRAFT)

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
        from .drafters import HorizontalDrafter, Part

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
        from .drafters import VerticalDrafter

        middle = find(self.name, self.middle, target, tokenizer)
        small = self.small.named(self.name).make_drafter(target, tokenizer)
        own = "length" in self.small.model_fields_set
        length = self.small.length if own else self.length
        return VerticalDrafter(middle.load_verifier(), small, length.build(), writes_on=True)


class CSDraftingRecipe(ArmRecipe):
    """Chen et al., "Cascade Speculative Drafting", Algorithm 1.

    models: draft models from larger to smaller, each a shipped name, a local transformers folder or
        a hub id, then a Max-Gram as a mapping.
    K: upper-triangular, a row and a column a model. Row 0 says how many tokens each model in turn
        adds to what the target verifies; row i + 1 how many each model after models[i] adds to what
        models[i] verifies.
    lenience: of every verification but the target's. Appendix B of the paper verifies Max-Gram
        strictly; here as in the algorithm.
    branch: children at the leading drafted positions, for the target to verify as a tree; the first
        of each is the cascade's own, and the others have none. Appendix B has 8 "for each leading
        node", which we read as [8, 8] with its K of [[1, 3], [0, 1]]: what Max-Gram writes has no
        siblings.
    """

    kind: Literal["cs_drafting"] = "cs_drafting"
    models: list[ModelName | MaxGramRecipe]
    K: list[list[int]]
    lenience: Annotated[float, Field(ge=1)] = 1.0
    branch: Branch = ()
    lossless: ClassVar[bool] = True
    takes_grammars: ClassVar[bool] = True

    @field_validator("models", mode="before")
    @classmethod
    def _end_in_max_gram(cls, models: Any) -> Any:
        *neural, last = models if isinstance(models, list) and models else [None]
        named = bool(neural) and all(isinstance(model, str) for model in neural)
        if not named or not isinstance(last, dict) or last.get("kind") != "max_gram":
            raise ValueError(
                "name at least one draft model, from larger to smaller, and end the list with "
                "{kind: max_gram}"
            )
        if given := {"length", "verifier"} & set(last):
            raise ValueError(f"leave out `{min(given)}` of the Max-Gram; K says what it drafts")
        return models

    @model_validator(mode="after")
    def _upper_triangular(self) -> CSDraftingRecipe:
        n = len(self.models)
        refuse_by_cost("models", self._last)
        if len(self.K) != n or any(len(row) != n for row in self.K):
            raise ValueError(f"K: give {n} rows of {n} numbers, as there are {n} models")
        for i, row in enumerate(self.K):
            if any(row[:i]):
                raise ValueError(f"K: row {i} must be 0 left of the diagonal, not {row}")
            if row[i] < 1 or min(row[i:]) < 0 or sum(row) > MAX_DRAFT:
                raise ValueError(
                    f"K: row {i} must have 1 or more on the diagonal, 0 or more right of it and at "
                    f"most {MAX_DRAFT} together, not {row}"
                )
        require_bounds(TreeShape(self.branch), MAX_DRAFT)  # more than K may be accepted
        return self

    @property
    def drafter(self) -> str:
        return ", ".join(self._verifying) + ", max_gram"

    @property
    def _verifying(self) -> list[str]:
        return [model for model in self.models if isinstance(model, str)]

    @property
    def _last(self) -> MaxGramRecipe:
        last = self.models[-1]
        assert isinstance(last, MaxGramRecipe)  # as validated
        return last

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import fitting

        for name in self._verifying:
            fitting(self.name, name, target)
        super().check_target(target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.drafts import find
        from ...recipes.mistakes import require_trees
        from .drafters import cs_drafter

        if self.branch:
            require_trees(self.name, target, "a target")
        found = [find(self.name, name, target, tokenizer) for name in self._verifying]
        max_gram = self._last.named(self.name).make_drafter(target, tokenizer)
        verifier_models = [checkpoint.load_verifier() for checkpoint in found]
        drafter = cs_drafter(verifier_models, max_gram, self.K, self.lenience, MAX_DRAFT)
        return widened(self.name, drafter, self.branch, target)

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ...lengths import FixedLength
        from ...loop import SpeculativeDecoding
        from ...verify import Coupled

        drafter = self.make_drafter(target, tokenizer)
        return SpeculativeDecoding(self.name, drafter, Coupled(), FixedLength(MAX_DRAFT))
