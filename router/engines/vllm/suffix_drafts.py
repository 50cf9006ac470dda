"""SuffixDecoding in the proposer: copies by votes from a request's own text and from answers that
the engine gave before (methods/suffix/drafter.py does the same for draftpick's own answers)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.index import LONGEST, SuffixIndex
from decoders.earlier.votes import Draft, Wanted, draft
from decoders.methods.max_gram.copy_chances import CopyChances

from .rows import TrackedRequest

EVERYONE = ""  # whose answers are drafted from: vLLM does not say who asks
HOPELESS = 0.02  # a draft is followed while it is accepted this often


@dataclass
class _Text:
    """Of one request: where its tokens came before, and of either source how far it can be trusted
    and what it drafted last."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    chances: tuple[CopyChances, CopyChances] = field(
        default_factory=lambda: (CopyChances(), CopyChances())
    )
    made: tuple[Draft, Draft] = field(default_factory=lambda: (Draft(), Draft()))


class SuffixDrafts:
    """recipe: a SuffixRecipe of chains.
    share: draft from all earlier answers of this arm, whoever asked.
    """

    def __init__(self, recipe: Any, share: bool) -> None:
        self.by_cost = bool(recipe.by_cost)
        self._longest = recipe.length.longest
        self._wanted = Wanted(1, recipe.shortest, least=HOPELESS)
        self._earlier = EarlierAnswers() if share else None
        self._texts: WeakKeyDictionary[TrackedRequest, _Text] = WeakKeyDictionary()

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        return [self._of(request, k) for request, k in zip(requests, most, strict=True)]

    def _of(self, request: TrackedRequest, k: int) -> Draft:
        text = self._texts.setdefault(request, _Text())
        text.index.extend(request.ids[len(text.index) :].tolist())
        tail = request.ids[-LONGEST:].tolist()
        wanted = replace(self._wanted, depth=min(k, self._longest))
        own, others = text.chances
        earlier = Draft()
        if self._earlier is not None:
            earlier = self._earlier.draft(EVERYONE, tail, wanted, others)
        text.made = draft(text.index, tail, wanted, own, runs_on=True), earlier
        return max(text.made, key=lambda made: sum(made.chances))

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        from decoders.earlier.prefixes import agreeing

        text = self._texts.get(request)
        if text is None:
            return
        came = request.came
        for chances, made in zip(text.chances, text.made, strict=True):
            chances.observe(made.matched, agreeing(made.ids, came), len(came))

    def forget(self, request: TrackedRequest) -> None:
        if self._texts.pop(request, None) is not None and self._earlier is not None:
            ids = request.ids.tolist()
            at = request.prompt_tokens
            self._earlier.add(EVERYONE, ids[:at], ids[at:])
