"""What every arm's recipe has: a name, a kind, and how it becomes a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from ..common.errors import DraftpickError, GrammarError
from .length import MAX_DRAFT, Length, LengthRecipe
from .strict import Strict
from .verifier import CoupledRule, Rule

if TYPE_CHECKING:
    from ..models.drafts import TargetInfo
    from ..protocols import Backend, Drafter, Strategy
    from ..records import Request

__all__ = ["MAX_DRAFT", "ArmRecipe", "DraftingRecipe", "LengthRecipe", "Strict"]


class ArmRecipe(Strict):
    """One arm; `kind` says which of KINDS it is (see `decoders.recipes.kinds`)."""

    name: str = ""
    kind: str
    note: str = ""

    @property
    def lossless(self) -> bool:
        """Whether the answer is distributed as the target's own."""
        raise NotImplementedError

    @property
    def remote(self) -> bool:
        """Whether it answers elsewhere, without a target: by an engine of its kind (ENGINES)."""
        return False

    def identity(self, context: Any = None) -> Any:
        """What the arms' fingerprint is made of (JSON): the kind and all fields but the note.

        context: of the dump, as `model_name.BY_WEIGHTS`.
        """
        body = self.model_dump_json(exclude_defaults=True, exclude={"note"}, context=context)
        return self.kind + body

    @property
    def uses_cost_model(self) -> bool:
        """Whether it goes by what the target's passes cost (see `decoders.costs.passes`)."""
        return False

    @property
    def reads_earlier(self) -> bool:
        """Whether it drafts from earlier answers too, so that what came before a query matters."""
        return any(part.reads_earlier for part in self._parts)

    @property
    def _parts(self) -> Iterator[ArmRecipe]:
        """The recipes inside it."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, ArmRecipe):
                    yield each

    def named(self, arm: str) -> Self:
        """The same as a part of an arm, which its mistakes then name."""
        return self.model_copy(update={"name": arm})

    @property
    def takes_grammars(self) -> bool:
        """Whether its answers can be bound by a grammar, and have log-probabilities: those of the
        speculative loop that the target verifies losslessly."""
        return False

    def check(self, request: Request) -> None:
        """Raises DraftpickError where the arm cannot answer such a request; needs no model."""
        if request.grammar is not None and not self.takes_grammars:
            raise GrammarError(
                f"arm {self.name!r} follows no grammar, as only lossless arms of the speculative "
                "loop do; name one of those, for instance autoregressive, or ask for any text"
            )
        if request.logprobs is not None and not self.takes_grammars:
            raise DraftpickError(
                f"arm {self.name!r} gives no logprobs, as only lossless arms of the speculative "
                "loop do; leave them out, or name one of those, for instance autoregressive"
            )
        if request.passed and not self.remote:
            raise DraftpickError(
                f"arm {self.name!r} is no endpoint, which alone reads {', '.join(request.passed)}; "
                "leave `passed` out"
            )

    def check_target(self, target: TargetInfo) -> None:
        """Check the models that the recipe names against the target's files; load no weights. Here
        those of the recipes inside it.

        Raises DraftpickError where one is missing or does not fit the target.
        """
        for part in self._parts:
            part.named(self.name).check_target(target)

    def prepare(self, target: Backend) -> None:
        """Set up the target for this arm, before it reads any prompt. Here for the recipes inside
        it."""
        for part in self._parts:
            part.named(self.name).prepare(target)

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        """Load what the recipe names. Raises DraftpickError where it does not fit the target."""
        raise NotImplementedError


class DraftingRecipe(ArmRecipe):
    """A drafter, verified by the target: the arms that run through the speculative loop.

    context_to: tokens of prompt and answer beyond which nothing is drafted; None for as many as
        the drafter can follow.
    """

    length: Length = LengthRecipe()
    verifier: Rule = CoupledRule()
    context_to: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _judged_by_the_target(self) -> DraftingRecipe:
        if self.copies and self.verifier.compares_confidences:
            raise ValueError(
                f"`verifier: {{rule: {self.verifier.rule}}}` compares confidences, and a copy has "
                "none: all of it would be accepted; use coupled, lossless, lossy, lossy_star, "
                "bild or bild_star"
            )
        if self.branches and not isinstance(self.verifier, CoupledRule):
            raise ValueError("a tree is verified by the target's own tokens; leave `verifier` out")
        return self

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    @property
    def takes_grammars(self) -> bool:
        return self.lossless

    @property
    def uses_cost_model(self) -> bool:
        return self.length.uses_cost_model

    @property
    def copies(self) -> bool:
        """Whether what it drafts, or a part of it, is copied, and comes without a confidence."""
        return False

    @property
    def branches(self) -> bool:
        """Whether it drafts trees, which only the target verifies."""
        return False

    @property
    def doubts(self) -> bool:
        """Whether it stops before any token that it is not confident of."""
        return False

    @property
    def on_target(self) -> bool:
        """Whether it runs on the target's own layers, and so drafts for no other model."""
        return False

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        """The drafter, for this target."""
        raise NotImplementedError

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ..costs.passes import in_turn
        from ..lengths import AdaptiveLength
        from ..loop import SpeculativeDecoding

        drafter = self.make_drafter(target, tokenizer)
        length = self.length.build(target)
        if isinstance(length, AdaptiveLength):
            length.in_turn = in_turn(drafter, target)
        made = SpeculativeDecoding(self.name, drafter, self.verifier.build(), length)
        return made if self.context_to is None else replace(made, context_to=self.context_to)
