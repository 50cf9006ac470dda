"""Adapters of drafters that draft one token after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from decoders.lengths import FixedLength

from .expected import Chances, drawn, expected, simulated
from .protocols import KnownAnswers, ReplayedLoop
from .records import Expected, Replay
from .registry import ReplayAdapter
from .replay import REJECTED, Draft, replay_with_agreement
from .stack import DraftToken
from .trials import AcceptanceTrials

# (row, at, k) -> the k tokens that would follow the first `at` >= 1 of answers[row]
DraftTokens = Callable[[int, int, int], list[DraftToken]]


@runtime_checkable
class HasScript(Protocol):
    """An adapter that knows what is drafted from every place, as far as it can be accepted.

    later: unread tokens that the drafter leaves to its next draft, and reads in a step of their own
        where they are more; None where it reads along with the target.
    """

    later: int | None

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        """None where the answers cannot be read together."""
        ...


@runtime_checkable
class IsSure(Protocol):
    """An adapter that says whether drafts follow from the text alone, so that all of them can be
    had by asking the drafter along the answer."""

    def sure(self, temperature: float) -> bool: ...


@runtime_checkable
class HasTrials(Protocol):
    """An adapter that knows how likely each token is to be accepted."""

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials | None:
        """None where drafts do not follow from the answers."""
        ...


class ChainReplay(ReplayAdapter):
    """Its drafts along an answer follow from what it makes of the answer's own tokens.

    Tokens after the first rejected one, and past the answer's end, are only counted. Where
    `min_confidence` stops a draft, the loop may draft more or fewer of those.
    """

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        """Each as drafted on the true prefix; fewer where an answer has no more."""
        raise NotImplementedError

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials | None:
        raise NotImplementedError

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        tokens = self.tokens(answers)
        if tokens is None:
            return None

        def begin(row: int, min_confidence: float) -> Draft:
            return Draft(lambda at, k: sure_part(tokens(row, at, k), k, min_confidence))

        return [
            replay_with_agreement(answer, partial(begin, row), loop)
            for row, answer in enumerate(answers.ids)
        ]

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected] | None:
        """Exact where every round drafts equally many, else simulated."""
        found = self.trials(answers, temperature)
        if found is None:
            return None
        length, made = loop.length, []
        for row, (answer, seed) in enumerate(zip(answers.ids, seeds, strict=True)):
            chances = chances_of(found, row, len(answer), length.min_confidence)
            if type(length) is FixedLength:  # another class may not keep to k
                made.append(expected(len(answer), chances, length.k, loop.max_new_tokens))
            else:
                made.append(simulated(answer, partial(drawn, answer, chances), loop, seed))
        return made


def sure_part(run: list[DraftToken], k: int, min_confidence: float) -> list[int]:
    """k tokens, or those before the first that is not confident enough. What is missing of k lies
    past the answer's end, and is REJECTED."""
    ids = list[int]()
    for each in run:
        if each.confidence < min_confidence:
            return ids
        ids.append(each.token)
    return ids + [REJECTED] * (k - len(ids))


def chances_of(trials: AcceptanceTrials, row: int, tokens: int, min_confidence: float) -> Chances:
    """For one answer, the number of tokens until its drafter is too unsure to go on."""

    def chances(at: int, k: int) -> list[float]:
        made = list[float]()
        for chance, confidence in trials(row, at, min(k, tokens - at)):
            if confidence < min_confidence:
                return made
            made.append(chance)
        return made + [0.0] * (k - len(made))

    return chances
