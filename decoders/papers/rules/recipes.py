"""The papers' rules that `verifier:` may name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ...recipes.verifier import NamedRule, Nats, Share, VerifierRecipe

if TYPE_CHECKING:
    from ...protocols import Verifier


class LosslessRule(NamedRule):
    """Speculative sampling."""

    rule: Literal["lossless"]

    def build(self) -> Verifier:
        from .lossy import Lossless

        return Lossless()


class LossyRule(VerifierRecipe):
    """The draft is held between p / beta and p / (1 - alpha). Lossless at alpha 0, beta 1."""

    rule: Literal["lossy"]
    alpha: Share
    beta: Annotated[float, Field(gt=0)] = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> LossyRule:
        if self.alpha + self.beta < 1 - 1e-9:  # 1 - 0.7 is a little more than 0.3
            raise ValueError(
                f"`beta` must be at least 1 - alpha = {1 - self.alpha:g}; at 1 it is the usual one"
            )
        return self

    @property
    def lossless(self) -> bool:
        return self.alpha == 0 and self.beta == 1

    def build(self) -> Verifier:
        from . import lossy
        from .lossy import Lossy

        mixture = partial(lossy.lossy, alpha=self.alpha, beta=self.beta)
        return Lossy(mixture, self.lossless)


class LossyStarRule(VerifierRecipe):
    """The lossy rule with the beta that makes pi a distribution. Give alpha, or a KL budget for
    each token in nats, from which alpha is chosen. Lossless at 0."""

    rule: Literal["lossy_star"]
    alpha: Share | None = None
    kl_budget: Nats | None = None

    @model_validator(mode="after")
    def _one(self) -> LossyStarRule:
        if (self.alpha is None) == (self.kl_budget is None):
            raise ValueError("give either `alpha` or `kl_budget`")
        return self

    @property
    def lossless(self) -> bool:
        return 0 in (self.alpha, self.kl_budget)

    def build(self) -> Verifier:
        from . import lossy
        from .lossy import Lossy

        if self.alpha is not None:
            return Lossy(partial(lossy.lossy_star, alpha=self.alpha), self.lossless)
        assert self.kl_budget is not None
        return Lossy(partial(lossy.lossy_budget, kl_budget=self.kl_budget), self.lossless)


class DeferralRule(VerifierRecipe):
    """Chow, Diff and OPT: the draft's distribution, or the target's where the rule defers. No alpha
    makes these lossless: a draft as sure as the target is never deferred."""

    rule: Literal["chow", "diff", "opt"]
    alpha: Nats
    log_loss: bool = False
    compares_confidences: ClassVar[bool] = True

    @model_validator(mode="after")
    def _sometimes_defers(self) -> DeferralRule:
        if self.alpha > 1 and self.rule != "opt" and not self.log_loss:
            raise ValueError(
                "`alpha` must be between 0 and 1, as probabilities are; above that nothing is "
                "deferred (with `log_loss` it is in nats and has no limit)"
            )
        return self

    def build(self) -> Verifier:
        from .deferral import SpeculativeCascade, deferral

        rule = partial(deferral, rule=self.rule, alpha=self.alpha, log_loss=self.log_loss)
        return SpeculativeCascade(rule)


class BiLDStarRule(VerifierRecipe):
    """Defer where the target finds the draft's most likely token more surprising than alpha."""

    rule: Literal["bild_star"]
    alpha: Nats

    def build(self) -> Verifier:
        from .deferral import SpeculativeCascade, bild_star

        return SpeculativeCascade(partial(bild_star, alpha=self.alpha))


class BiLDRule(VerifierRecipe):
    """BiLD: replace the first drafted token that surprises the target by more than `rollback` nats;
    lossless at 0. At temperature 0 the target's most likely token is kept however surprising; with
    `keep_argmax: false` it is rolled back too, as Algorithm 1 is printed. Fall back with `length:
    {k: 10, min_confidence: ...}`."""

    rule: Literal["bild"]
    rollback: Nats
    keep_argmax: bool = True

    @property
    def lossless(self) -> bool:
        return self.rollback == 0

    def build(self) -> Verifier:
        from .deferral import BiLD

        return BiLD(self.rollback, self.keep_argmax)
