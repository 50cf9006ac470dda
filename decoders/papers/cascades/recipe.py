"""Sequential cascades of a draft model and the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator

from ...methods.neural.recipe import NeuralRecipe
from ...recipes.base import ArmRecipe, DraftingRecipe
from ...recipes.nested import Nested

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Strategy


class CascadeRecipe(ArmRecipe):
    """drafter: a recipe of its own, without length and verifier.
    alpha: what an answer of the target's is taken to cost; the higher, the more is left to the
        draft model.
    """

    drafter: Nested
    alpha: Annotated[float, Field(ge=0, le=1)]
    lossless: ClassVar[bool] = False

    @field_validator("drafter")
    @classmethod
    def _one_token_a_time(cls, drafter: DraftingRecipe) -> DraftingRecipe:
        if "length" in drafter.model_fields_set:
            raise ValueError("leave out `length`: this arm asks its drafter for one token a time")
        return drafter


class EachTokenRecipe(CascadeRecipe):
    @field_validator("drafter")
    @classmethod
    def _with_confidence(cls, drafter: DraftingRecipe) -> DraftingRecipe:
        if not drafter.doubts:
            raise ValueError(
                "this arm goes by its drafter's confidence in each token, which "
                f"`kind: {drafter.kind}` does not stop by; give `neural`, `early_exit` or "
                "`recurrent`"
            )
        return drafter

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from .strategies import OracleCascade, TokenCascade

        made = TokenCascade if self.kind == "token_cascade" else OracleCascade
        drafter = self.drafter.named(self.name).make_drafter(target, tokenizer)
        strategy: TokenCascade | OracleCascade = made(self.name, drafter, self.alpha)
        return strategy


class TokenCascadeRecipe(EachTokenRecipe):
    """The target writes a token where the draft model's greatest probability is below
    1 - alpha."""

    kind: Literal["token_cascade"] = "token_cascade"


class OracleCascadeRecipe(EachTokenRecipe):
    """The target writes a token where its greatest probability exceeds the draft model's by
    more than alpha. Both models run at every position: for analysis, never fast."""

    kind: Literal["oracle_cascade"] = "oracle_cascade"


class SequenceCascadeRecipe(CascadeRecipe):
    """The target answers where the probability of the draft model's whole answer is below
    1 - alpha.

    normalised: the geometric mean of its tokens' probabilities, else their product.
    """

    kind: Literal["sequence_cascade"] = "sequence_cascade"
    normalised: bool = True

    @field_validator("drafter")
    @classmethod
    def _a_model(cls, drafter: DraftingRecipe) -> DraftingRecipe:
        if drafter.kind != "neural":
            raise ValueError("must be `kind: neural`: only a model can write and score an answer")
        return drafter

    def check_target(self, target: TargetInfo) -> None:
        self._model.check_same_tokenizer(target)

    @property
    def _model(self) -> NeuralRecipe:
        return cast(NeuralRecipe, self.drafter.named(self.name))

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ...methods.neural.drafter import NeuralDrafter
        from .strategies import SequenceCascade

        drafter = NeuralDrafter(*self._model.load_model(target, tokenizer))
        return SequenceCascade(self.name, drafter, self.alpha, self.normalised)
