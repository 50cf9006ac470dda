"""What `verifier:` may say: the name `lossless`, or a mapping of a rule and its thresholds. A new
rule is a class and a line in RULES, from outside RULES["mine"] = MyRule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_serializer, model_validator

from ..common.plugins import watched
from .strict import Strict

if TYPE_CHECKING:
    from ..protocols import Verifier

Nats = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class VerifierRecipe(Strict):
    """One rule; `rule` says which of RULES it is."""

    rule: str

    @property
    def lossless(self) -> bool:
        """Whether the answer is distributed as the target's own."""
        raise NotImplementedError

    @property
    def compares_confidences(self) -> bool:
        """Whether it asks how sure the drafter is, so that it cannot judge a copy."""
        return False

    def build(self) -> Verifier:
        """The moving part."""
        raise NotImplementedError


class LosslessRule(VerifierRecipe):
    """D2. Written as its name alone."""

    rule: Literal["lossless"] = "lossless"

    @model_serializer
    def _as_name(self) -> str:
        return self.rule

    @property
    def lossless(self) -> bool:
        return True

    def build(self) -> Verifier:
        from ..verify import Lossless

        return Lossless()


class LossyRule(VerifierRecipe):
    """D4: the draft is held between p / beta and p / (1 - alpha). Lossless at alpha 0, beta 1."""

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
        from ..verify import Lossy, lossy

        mixture = partial(lossy.lossy, alpha=self.alpha, beta=self.beta)
        return Lossy(mixture, self.lossless)


class LossyStarRule(VerifierRecipe):
    """D4 with the beta that makes pi a distribution. Give alpha, or a KL budget for each token in
    nats, from which alpha is chosen. Lossless at 0."""

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
        from ..verify import Lossy, lossy

        if self.alpha is not None:
            return Lossy(partial(lossy.lossy_star, alpha=self.alpha), self.lossless)
        assert self.kl_budget is not None
        return Lossy(partial(lossy.lossy_budget, kl_budget=self.kl_budget), self.lossless)


class DeferralRule(VerifierRecipe):
    """D5 to D7: the draft's distribution, or the target's where the rule defers. No alpha makes
    these lossless: a draft as sure as the target is never deferred."""

    rule: Literal["chow", "diff", "opt"]
    alpha: Nats
    log_loss: bool = False

    @model_validator(mode="after")
    def _sometimes_defers(self) -> DeferralRule:
        if self.alpha > 1 and self.rule != "opt" and not self.log_loss:
            raise ValueError(
                "`alpha` must be between 0 and 1, as probabilities are; above that nothing is "
                "deferred (with `log_loss` it is in nats and has no limit)"
            )
        return self

    @property
    def lossless(self) -> bool:
        return False

    @property
    def compares_confidences(self) -> bool:
        return True

    def build(self) -> Verifier:
        from ..verify import SpeculativeCascade, deferral

        rules = {"chow": deferral.chow, "diff": deferral.diff, "opt": deferral.opt}
        return SpeculativeCascade(
            partial(rules[self.rule], alpha=self.alpha, log_loss=self.log_loss)
        )


class BiLDStarRule(VerifierRecipe):
    """D8: defer where the target finds the draft's most likely token more surprising than alpha."""

    rule: Literal["bild_star"]
    alpha: Nats

    @property
    def lossless(self) -> bool:
        return False

    def build(self) -> Verifier:
        from ..verify import SpeculativeCascade, deferral

        return SpeculativeCascade(partial(deferral.bild_star, alpha=self.alpha))


class BiLDRule(VerifierRecipe):
    """D12: replace the first drafted token that surprises the target by more than `rollback` nats;
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
        from ..verify import BiLD

        return BiLD(self.rollback, self.keep_argmax)


RULES: dict[str, type[VerifierRecipe]] = watched(
    "verifier rule",
    {
        "lossless": LosslessRule,
        "lossy": LossyRule,
        "lossy_star": LossyStarRule,
        "chow": DeferralRule,
        "diff": DeferralRule,
        "opt": DeferralRule,
        "bild_star": BiLDStarRule,
        "bild": BiLDRule,
    },
)


def _rule(body: Any) -> Any:
    """A rule's name alone, or a mapping of any rule in RULES."""
    if isinstance(body, VerifierRecipe):
        return body
    body = {"rule": body} if isinstance(body, str) else body
    if not isinstance(body, dict):
        raise ValueError("give a rule's name, or a mapping with `rule:`")
    if "rule" not in body:
        raise ValueError("give a `rule:`")
    rule = body["rule"]
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"`rule: {rule}` is not one of {', '.join(RULES)}")
    return RULES[rule].model_validate(body)


Rule = Annotated[SerializeAsAny[VerifierRecipe], BeforeValidator(_rule)]
