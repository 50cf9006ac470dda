"""What `length:` may say: how many tokens a round drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from .strict import Strict

if TYPE_CHECKING:
    from ..protocols import Backend, DraftLength

LONGEST = 64  # tokens of a draft


class LengthRecipe(Strict):
    """kind fixed: k tokens a round. adaptive: up to k, chosen from the running acceptance rate and
    the measured costs. scheduled: k at first, then two more or one fewer, as in transformers.
    min_confidence: stop before a token that the drafter gives less."""

    kind: Literal["fixed", "adaptive", "scheduled"] = "fixed"
    k: Annotated[int, Field(ge=1, le=LONGEST)] = 4
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def longest(self) -> int:
        """Tokens that a draft may come to have."""
        return LONGEST if self.kind == "scheduled" else self.k

    def build(self, reviewer: Backend | None = None) -> DraftLength:
        """reviewer: the model whose passes drafts spare; what they cost is used where known."""
        from ..costs.passes import known
        from ..lengths import AdaptiveLength, FixedLength, ScheduledLength

        if self.kind == "adaptive":
            passes = known(reviewer) if reviewer is not None else None
            return AdaptiveLength(self.k, self.min_confidence, passes=passes)
        if self.kind == "scheduled":
            return ScheduledLength(self.k, self.min_confidence, LONGEST)
        return FixedLength(self.k, self.min_confidence)
