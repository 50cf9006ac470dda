"""What `verifier:` may say: the name `coupled`, or a mapping of a rule and its thresholds. A new
rule is a class and a line in RULES, from outside RULES["mine"] = MyRule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_serializer

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
        return False

    @property
    def compares_confidences(self) -> bool:
        """Whether it asks how sure the drafter is, so that it cannot judge a copy."""
        return False

    def build(self) -> Verifier:
        """The moving part."""
        raise NotImplementedError


class NamedRule(VerifierRecipe):
    """A lossless rule without thresholds, written as its name alone."""

    lossless: ClassVar[bool] = True

    @model_serializer
    def _as_name(self) -> str:
        return self.rule


class CoupledRule(NamedRule):
    """The target's own tokens alone are accepted."""

    rule: Literal["coupled"] = "coupled"

    def build(self) -> Verifier:
        from ..verify import Coupled

        return Coupled()


RULES: dict[str, type[VerifierRecipe]] = watched("verifier rule", {"coupled": CoupledRule})


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
