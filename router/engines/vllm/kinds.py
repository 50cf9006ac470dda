"""Drafters of a proposer's arms: entries of KINDS, by the `kind` of their recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from decoders.arms import ArmRecipe
from decoders.common.errors import DraftpickError
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.index import MAX_MATCH, SuffixIndex
from decoders.earlier.prefixes import agreeing
from decoders.earlier.votes import Draft, Wanted, draft
from decoders.methods.max_gram.copying import HOPELESS, CopyChances, Matches, copied

from .engine import EngineFacts
from .rows import ArmDrafter, TrackedRequest


class CopyingDrafts(ArmDrafter):
    """Prompt lookup; how often copies are accepted is learnt within each answer.

    recipe: a MaxGramRecipe. Raises DraftpickError for one with a table.
    """

    def __init__(self, recipe: Any, engine: EngineFacts) -> None:
        if recipe.drafter is not None:
            raise DraftpickError(
                f"the arm {recipe.name!r} asks the table {recipe.drafter!r} where nothing matches, "
                "which a proposer does not; leave `drafter` out"
            )
        self._recipe = recipe
        self._matches = Matches(recipe.shortest, recipe.longest, recipe.earliest)
        self.by_cost = bool(recipe.by_cost)
        self._chances: WeakKeyDictionary[TrackedRequest, CopyChances] = WeakKeyDictionary()

    def drafted(self, request: TrackedRequest, k: int) -> Draft:
        most, chances = min(k, self._recipe.length.longest), self._learnt(request)
        ids, below = request.ids, self._recipe.stop_below
        return copied(ids, ids, most, self._matches, chances, below)

    def _learnt(self, request: TrackedRequest) -> CopyChances:
        return self._chances.setdefault(request, CopyChances())

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        came = request.came
        self._learnt(request).observe(draft.matched, agreeing(draft.ids, came), len(came))

    def forget(self, request: TrackedRequest) -> None:
        self._chances.pop(request, None)


def neural(recipe: Any, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError as `model_drafts`."""
    from .model_drafts import model_drafts

    return model_drafts(recipe, engine)


EVERYONE = ""  # whose answers are drafted from: vLLM does not say who asks


@dataclass
class _Text:
    """The text of one request: where its tokens came before, and of either source how far it can be
    trusted and what it drafted last."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    chances: tuple[CopyChances, CopyChances] = field(
        default_factory=lambda: (CopyChances(), CopyChances())
    )
    made: tuple[Draft, Draft] = field(default_factory=lambda: (Draft(), Draft()))


class SuffixDrafts(ArmDrafter):
    """Suffix decoding, where the engine shares answers from all earlier ones of this arm too.

    recipe: a SuffixRecipe. Raises DraftpickError for one of trees.
    """

    def __init__(self, recipe: Any, engine: EngineFacts) -> None:
        if recipe.branches:
            raise DraftpickError(
                f"the arm {recipe.name!r} drafts trees, which vLLM does not take from a proposer; "
                "leave `width` out"
            )
        self.by_cost = bool(recipe.by_cost)
        self._longest = recipe.length.longest
        self._wanted = Wanted(1, recipe.shortest, least=HOPELESS)
        self._earlier = EarlierAnswers() if engine.share_answers else None
        self._texts: WeakKeyDictionary[TrackedRequest, _Text] = WeakKeyDictionary()
        # How far the earlier answers have a request that was taken to have ended.
        self._given: WeakKeyDictionary[TrackedRequest, int] = WeakKeyDictionary()

    def drafted(self, request: TrackedRequest, k: int) -> Draft:
        text = self._texts.setdefault(request, _Text())
        text.index.extend(request.ids[len(text.index) :].tolist())
        tail = request.ids[-MAX_MATCH:].tolist()
        wanted = replace(self._wanted, depth=min(k, self._longest))
        own, others = text.chances
        earlier = Draft()
        if self._earlier is not None:
            earlier = self._earlier.draft(EVERYONE, tail, wanted, others)
        text.made = draft(text.index, tail, wanted, own, runs_on=True), earlier
        return max(text.made, key=lambda made: sum(made.chances))

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        text = self._texts.get(request)
        if text is None:
            return
        came = request.came
        for chances, made in zip(text.chances, text.made, strict=True):
            chances.observe(made.matched, agreeing(made.ids, came), len(came))

    def forget(self, request: TrackedRequest) -> None:
        at = self._given.get(request, request.prompt_tokens)
        drafted = self._texts.pop(request, None) is not None
        if drafted and self._earlier is not None and at < request.length:
            ids = request.ids.tolist()
            self._earlier.add(EVERYONE, ids[:at], ids[at:])
            self._given[request] = request.length


# Makes the drafter of an arm; raises DraftpickError where the engine cannot have it.
KINDS: dict[str, Callable[[Any, EngineFacts], ArmDrafter]] = {
    "autoregressive": lambda recipe, engine: ArmDrafter(),
    "max_gram": CopyingDrafts,
    "neural": neural,
    "suffix": SuffixDrafts,
}


def drafter_of(recipe: ArmRecipe, engine: EngineFacts) -> ArmDrafter:
    """Raises DraftpickError for an arm that a proposer cannot be, for a lossy one, and for copies
    whose draft length is not fixed."""
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
    if length is not None and length.kind != "fixed" and recipe.kind != "neural":
        raise DraftpickError(
            f"the arm {recipe.name!r} has a draft length of the kind {length.kind!r}, which in a "
            "proposer a draft model may have alone; give `length: {k: N}`, and `by_cost: true`"
        )
    return KINDS[recipe.kind](recipe, engine)
