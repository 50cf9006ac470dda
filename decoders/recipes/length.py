"""What `length:` may say: how many tokens a round drafts. A new rule is a class and a line in
LENGTHS, from outside LENGTHS["mine"] = MyRecipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..common.plugins import watched
from .strict import Strict

if TYPE_CHECKING:
    from ..protocols import Backend, DraftLength

MAX_DRAFT = 64  # tokens of a draft


class LengthRecipe(Strict):
    """k tokens a round.

    min_confidence: stop before a token that the drafter gives less.
    """

    kind: str = "fixed"
    k: Annotated[int, Field(ge=1, le=MAX_DRAFT)] = 4
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _of_its_kind(self) -> LengthRecipe:
        if LENGTHS.get(self.kind) is not type(self):
            raise ValueError(f"kind: {self.kind!r} is not a {type(self).__name__}; see LENGTHS")
        return self

    @property
    def longest(self) -> int:
        """Tokens that a draft may come to have."""
        return self.k

    @property
    def uses_cost_model(self) -> bool:
        """Whether it goes by what the target's passes cost (see `decoders.costs.passes`)."""
        return False

    def build(self, verifier_model: Backend | None = None) -> DraftLength:
        """The draft length.

        verifier_model: the model whose passes drafts spare; what they cost is used where known.
        """
        from ..lengths import FixedLength

        return FixedLength(self.k, self.min_confidence)


class AdaptiveRecipe(LengthRecipe):
    """Up to k tokens, chosen from the running acceptance rate and the measured costs.

    min_confidence: as in fixed.
    """

    kind: Literal["adaptive"]
    uses_cost_model: ClassVar[bool] = True

    def build(self, verifier_model: Backend | None = None) -> DraftLength:
        from ..costs.passes import known
        from ..lengths import AdaptiveLength

        passes = known(verifier_model) if verifier_model is not None else None
        return AdaptiveLength(self.k, self.min_confidence, passes=passes)


class ScheduledRecipe(LengthRecipe):
    """k tokens at first, then two more or one fewer, as in transformers.

    min_confidence: as in fixed.
    """

    kind: Literal["scheduled"]

    @property
    def longest(self) -> int:
        return MAX_DRAFT

    def build(self, verifier_model: Backend | None = None) -> DraftLength:
        from ..lengths import ScheduledLength

        return ScheduledLength(self.k, self.min_confidence, MAX_DRAFT)


LENGTHS: dict[str, type[LengthRecipe]] = watched(
    "draft length",
    {"fixed": LengthRecipe, "adaptive": AdaptiveRecipe, "scheduled": ScheduledRecipe},
)


def _length(body: Any) -> Any:
    """A mapping of any kind in LENGTHS; without a kind it is a fixed one."""
    if isinstance(body, LengthRecipe):
        return body
    kind = body.get("kind", "fixed") if isinstance(body, dict) else "fixed"
    if not isinstance(kind, str) or kind not in LENGTHS:
        words = f"{kind!r} is not known; give one of {', '.join(LENGTHS)}"
        mistake = PydanticCustomError("value_error", "{words}", {"words": words})
        raise ValidationError.from_exception_data(
            "length", [InitErrorDetails(type=mistake, loc=("kind",), input=kind)]
        )
    return LENGTHS[kind].model_validate(body)


Length = Annotated[SerializeAsAny[LengthRecipe], BeforeValidator(_length)]
