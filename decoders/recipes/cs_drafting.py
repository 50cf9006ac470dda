"""Vertical and horizontal cascades of a row of draft models (D14 and D15 together)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from .base import LONGEST, ArmRecipe
from .max_gram import MaxGramRecipe
from .nested import make, refuse_by_cost

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..drafters import Drafter
    from ..strategy import Strategy


class CSDraftingRecipe(ArmRecipe):
    """Chen et al., "Cascade Speculative Drafting", Algorithm 1.

    models: draft models from larger to smaller, each a shipped name, a local transformers folder or
    a hub id, then a Max-Gram as a mapping. K: upper-triangular, a row and a column a model. Row 0
    says how many tokens each model in turn adds to what the target reviews; row i + 1 how many each
    model after models[i] adds to what models[i] reviews. lenience: of every review but the
    target's. Appendix B of the paper reviews Max-Gram strictly; here as in the algorithm.
    """

    kind: Literal["cs_drafting"] = "cs_drafting"
    models: list[str | MaxGramRecipe]
    K: list[list[int]]
    lenience: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0

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
        return models

    @model_validator(mode="after")
    def _upper_triangular(self) -> CSDraftingRecipe:
        n = len(self.models)
        assert isinstance(self.models[-1], MaxGramRecipe)  # as validated
        refuse_by_cost("models", self.models[-1])
        if len(self.K) != n or any(len(row) != n for row in self.K):
            raise ValueError(f"K: give {n} rows of {n} numbers, as there are {n} models")
        for i, row in enumerate(self.K):
            if any(row[:i]):
                raise ValueError(f"K: row {i} must be 0 left of the diagonal, not {row}")
            if row[i] < 1 or min(row[i:]) < 0 or sum(row) > LONGEST:
                raise ValueError(
                    f"K: row {i} must have 1 or more on the diagonal, 0 or more right of it and at "
                    f"most {LONGEST} together, not {row}"
                )
        return self

    @property
    def lossless(self) -> bool:
        return True

    @property
    def drafter(self) -> str:
        return ", ".join(model for model in self.models if isinstance(model, str)) + ", max_gram"

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..drafters.cs_drafting import cs_drafter
        from .checkpoints import find

        *names, last = self.models
        assert isinstance(last, MaxGramRecipe)  # as validated
        found = [find(self.name, str(name), target, tokenizer) for name in names]
        max_gram = make(last, self.name, target, tokenizer)
        reviewers = [checkpoint.load_reviewer() for checkpoint in found]
        return cs_drafter(reviewers, max_gram, self.K, self.lenience, LONGEST)

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ..lengths import FixedLength
        from ..loop import Method
        from ..verify import Lossless

        drafter = self.make_drafter(target, tokenizer)
        return Method(self.name, drafter, Lossless(), FixedLength(LONGEST))
