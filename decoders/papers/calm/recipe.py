"""Tokens that leave the target after as many layers as they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ...recipes.base import ArmRecipe

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Strategy


class CalmRecipe(ArmRecipe):
    """Each token leaves the target once it is confident enough.

    threshold: the confidence at which a token leaves; at 1 none does, and the answer is the
        target's own.
    confidence: cosine of successive states (saturation), or the difference between the two
        most likely tokens' probabilities (softmax).
    decay: how fast the threshold is lowered along the answer.
    """

    kind: Literal["calm"] = "calm"
    threshold: Annotated[float, Field(ge=0, le=1)]
    confidence: Literal["saturation", "softmax"] = "saturation"
    decay: Annotated[float, Field(ge=0)] = 4.0
    lossless: ClassVar[bool] = False

    def check_target(self, target: TargetInfo) -> None:
        from ...models.drafts import require_layers

        require_layers(self.name, target.in_layers)

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ...models.drafts import require_layers
        from ...protocols import LayeredBackend
        from .strategy import Calm

        require_layers(self.name, isinstance(target, LayeredBackend))
        assert isinstance(target, LayeredBackend)
        return Calm(self.name, self.threshold, self.confidence, self.decay)
