"""Beams that are drawn, of which the best is kept (D20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ...recipes.base import ArmRecipe
from ...recipes.nested import Nested

if TYPE_CHECKING:
    from ...protocols import Backend, Strategy


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
