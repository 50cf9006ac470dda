"""Tokens that leave the target after as many layers as they need (D19)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..errors import DraftpickError
from .base import ArmRecipe

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..strategy import Strategy


class CalmRecipe(ArmRecipe):
    """threshold: the confidence at which a token leaves; at 1 none does, and the answer is the
    target's own. confidence: cosine of successive states (saturation), or the two likeliest
    tokens' probabilities apart (softmax). decay: how fast the threshold falls along the answer."""

    kind: Literal["calm"] = "calm"
    threshold: Annotated[float, Field(ge=0, le=1)]
    confidence: Literal["saturation", "softmax"] = "saturation"
    decay: Annotated[float, Field(ge=0)] = 4.0

    @property
    def lossless(self) -> bool:
        return False

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ..backends.base import LayeredBackend
        from ..cascades import Calm

        if not isinstance(target, LayeredBackend):
            raise DraftpickError(
                f"arm {self.name!r}: leaving early needs the native backend, which this target "
                "does not fit or --backend hf has switched off, or a T5-like target; choose "
                "another arm"
            )
        return Calm(self.name, self.threshold, self.confidence, self.decay)
