"""What every arm's recipe has: a name, a kind, and how it becomes moving parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from .length import LengthRecipe
from .strict import Strict
from .verifier import LosslessRule, VerifierRecipe

if TYPE_CHECKING:
    from ..models.drafts import Reading
    from ..protocols import Backend, Drafter, Strategy
    from ..records import Request

__all__ = ["LONGEST", "ArmRecipe", "DraftingRecipe", "LengthRecipe", "Strict"]

LONGEST = 64  # tokens of a draft


class ArmRecipe(Strict):
    """One arm; `kind` says which of KINDS it is (see `decoders.arms.kinds`)."""

    name: str = ""
    kind: str
    note: str = ""

    @property
    def lossless(self) -> bool:
        """Whether the answer's distribution is the target's own."""
        raise NotImplementedError

    @property
    def by_passes(self) -> bool:
        """Whether it goes by what the target's passes cost (see `decoders.costs.passes`)."""
        return False

    def check(self, request: Request) -> None:
        """Raises DraftpickError where the arm cannot answer so; needs no model."""

    def fit(self, target: Reading) -> None:
        """Raises DraftpickError where what it names is not to be had or does not fit the target, of
        which nothing but its files is known yet. No weights are loaded."""

    def prepare(self, target: Backend) -> None:
        """Tell the target, before it reads any prompt, what the arm will want of it."""

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        """Load what the recipe names. Raises DraftpickError where it does not fit the target."""
        raise NotImplementedError


class DraftingRecipe(ArmRecipe):
    """A drafter, verified by the target: the arms that run through the speculative loop."""

    length: LengthRecipe = LengthRecipe()
    verifier: VerifierRecipe = LosslessRule()

    @model_validator(mode="after")
    def _judged_by_the_target(self) -> DraftingRecipe:
        if self.copies and self.verifier.rule in ("chow", "diff", "opt"):
            raise ValueError(
                f"`verifier: {{rule: {self.verifier.rule}}}` compares confidences, and a copy has "
                "none: all of it would stand; use lossless, lossy, lossy_star, bild or bild_star"
            )
        return self

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    @property
    def by_passes(self) -> bool:
        return self.length.kind == "adaptive"

    @property
    def copies(self) -> bool:
        """Whether what it drafts, or a part of it, is copied, and comes without a confidence."""
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
        """The part that guesses, for this target."""
        raise NotImplementedError

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ..loop import SpeculativeDecoding

        return SpeculativeDecoding(
            self.name,
            self.make_drafter(target, tokenizer),
            self.verifier.build(),
            self.length.build(target),
        )
