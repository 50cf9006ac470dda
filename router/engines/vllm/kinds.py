"""What the arms of a proposer are made of: entries of KINDS, by the `kind` of their recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from decoders.arms import ArmRecipe
from decoders.common.errors import DraftpickError
from decoders.earlier.votes import Draft
from decoders.methods.max_gram.copy_chances import CopyChances

from .copying import copied
from .engine import EngineFacts
from .rows import TrackedRequest


class ArmDrafter(Protocol):
    """Drafts for all rows of one arm.

    by_cost: its drafts end where they no longer pay, by what steps of the engine cost.
    """

    by_cost: bool

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        """A draft for each request, of at most this many tokens."""
        ...

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        """What came after a draft of this arm, `request.came`. draft: as it was before what would
        not pay was cut off."""
        ...

    def forget(self, request: TrackedRequest) -> None:
        """It has ended, or another arm drafts for it now."""
        ...


# Makes the drafter of an arm; raises DraftpickError where the engine cannot have it.
MakeDrafter = Callable[[Any, EngineFacts], ArmDrafter]


class NoDrafts:
    """Plain decoding."""

    by_cost = False

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        return [Draft() for _ in requests]

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        pass

    def forget(self, request: TrackedRequest) -> None:
        pass


class CopyingDrafts:
    """Prompt lookup; how often copies are accepted is learnt within each answer.

    recipe: a MaxGramRecipe.
    """

    def __init__(self, recipe: Any) -> None:
        self._recipe = recipe
        self.by_cost = bool(recipe.by_cost)
        self._chances: WeakKeyDictionary[TrackedRequest, CopyChances] = WeakKeyDictionary()

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        return [self._of(request, k) for request, k in zip(requests, most, strict=True)]

    def _of(self, request: TrackedRequest, k: int) -> Draft:
        recipe = self._recipe
        return copied(
            request.ids,
            min(k, recipe.length.longest),
            recipe.shortest,
            recipe.longest,
            self._learnt(request),
            recipe.earliest,
            recipe.stop_below,
        )

    def _learnt(self, request: TrackedRequest) -> CopyChances:
        if request not in self._chances:
            self._chances[request] = CopyChances()
        return self._chances[request]

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        from decoders.earlier.prefixes import agreeing

        came = request.came
        self._learnt(request).observe(draft.matched, agreeing(draft.ids, came), len(came))

    def forget(self, request: TrackedRequest) -> None:
        self._chances.pop(request, None)


def no_drafts(recipe: Any, engine: EngineFacts) -> ArmDrafter:
    return NoDrafts()


def copying(recipe: Any, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError for a table."""
    if recipe.drafter is not None:
        raise DraftpickError(
            f"the arm {recipe.name!r} asks the table {recipe.drafter!r} where nothing matches, "
            "which a proposer does not; leave `drafter` out"
        )
    return CopyingDrafts(recipe)


def neural(recipe: Any, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError as `model_drafts`."""
    from .model_drafts import model_drafts

    return model_drafts(recipe, engine)


def suffix(recipe: Any, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError for trees."""
    if recipe.branches:
        raise DraftpickError(
            f"the arm {recipe.name!r} drafts trees, which vLLM does not take from a proposer; "
            "leave `width` out"
        )
    from .suffix_drafts import SuffixDrafts

    return SuffixDrafts(recipe, engine.share_answers)


KINDS: dict[str, MakeDrafter] = {
    "autoregressive": no_drafts,
    "max_gram": copying,
    "neural": neural,
    "suffix": suffix,
}


def drafter_of(recipe: ArmRecipe, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError for an arm that a proposer cannot be, for a lossy one, and for a draft
    length that is not fixed."""
    if recipe.kind not in KINDS:
        raise DraftpickError(
            f"the arm {recipe.name!r} is of the kind {recipe.kind!r}, which vLLM's proposer cannot "
            f"be; it can be one of {', '.join(KINDS)}"
        )
    if not recipe.lossless:
        raise DraftpickError(
            f"the arm {recipe.name!r} is lossy, and vLLM verifies every draft itself; leave "
            "`verifier` out"
        )
    length = getattr(recipe, "length", None)
    if length is not None and length.kind != "fixed":
        raise DraftpickError(
            f"the arm {recipe.name!r} has a draft length of the kind {length.kind!r}; in a "
            "proposer give `length: {k: N}`"
        )
    return KINDS[recipe.kind](recipe, engine)
