"""Several cheap drafters, of which Hedge chooses anew while the answer is written (Liu et al.,
"Not-a-Bandit", 2510.20064)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import DraftingRecipe
from .length import LONGEST, Length, LengthRecipe
from .max_gram import MaxGramRecipe
from .nested import Nested, check_target, make, prepare, words
from .recurrent import RecurrentRecipe

if TYPE_CHECKING:
    from ..models.drafts import TargetInfo
    from ..protocols import Backend, Drafter


class SwitchingRecipe(DraftingRecipe):
    """After each round all parts are scored on the tokens that came: how many tokens per second
    each would have given. The leader drafts next.

    parts: the drafters, the preferred one first; `max_gram` and `recurrent`, whose `length` is not
        used.
    none: draft nothing where no part pays.
    after: score once, after so many tokens, and choose by that from then on; until then the first
        part that has anything to draft does.
    memory: rounds after which a score counts little; answers drift.
    trust: of how many rounds' scores a part's own promise for the coming round counts, made from
        match lengths and records.
    every: rounds that are scored together; scoring them costs a recurrent part about one draft.
    drawn: draw the part by its weight instead of taking the leader.
    draft_cost: of a token that a recurrent part drafts, in passes of the target over one token.
    length: a bound on the draft; how much of it is used follows from the part's score.
    """

    kind: Literal["switching"] = "switching"
    parts: Annotated[list[Nested], Field(min_length=1)]
    none: bool = True
    after: Annotated[int, Field(ge=2)] | None = None
    memory: Annotated[float, Field(ge=1)] = 20.0
    trust: Annotated[float, Field(ge=0)] = 4.0
    every: Annotated[int, Field(ge=1, le=LONGEST)] = 8
    drawn: bool = False
    draft_cost: Annotated[float, Field(ge=0)] = 0.06
    length: Length = LengthRecipe(k=16)

    @model_validator(mode="after")
    def _possible(self) -> SwitchingRecipe:
        for number, part in enumerate(self.parts):
            if not isinstance(part, MaxGramRecipe | RecurrentRecipe):
                raise ValueError(
                    f"parts.{number}: `{part.kind}` would have to catch up with the rounds that it "
                    "sat out; give `max_gram` or `recurrent`"
                )
        if len(self.parts) + self.none < 2:
            raise ValueError("parts: there is nothing to choose from; give two, or `none: true`")
        if self.length.min_confidence:
            raise ValueError("length.min_confidence: drafts end by the parts' scores; leave it out")
        return self

    @property
    def uses_cost_model(self) -> bool:
        return True

    @property
    def copies(self) -> bool:
        return any(part.copies for part in self.parts)

    @property
    def drafter(self) -> str:
        return ", or ".join([*(words(part) for part in self.parts), *(["none"] * self.none)])

    def check_target(self, target: TargetInfo) -> None:
        for part in self.parts:
            check_target(part, self.name, target)

    def prepare(self, target: Backend) -> None:
        for part in self.parts:
            prepare(part, self.name, target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..costs.passes import PassCosts, known
        from ..drafters import NullDrafter, SwitchingDrafter
        from ..drafters.switching import Settings
        from ..protocols import EncoderDecoder

        longest = self.length.longest
        parts: list[Any] = [make(part, self.name, target, tokenizer) for part in self.parts]
        if self.none:
            parts.append(NullDrafter(target.device))
        return SwitchingDrafter(
            parts,
            known(target) or PassCosts((1.0,) * (longest + 1)),
            Settings(
                memory=self.memory,
                trust=self.trust,
                every=self.every,
                after=self.after,
                drawn=self.drawn,
                draft_cost=self.draft_cost,
                longest=longest,
            ),
            target.device,
            source_apart=isinstance(target, EncoderDecoder),
        )
