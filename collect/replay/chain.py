"""Adapters of drafters that draft one token after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from .protocols import KnownAnswers, ReplayedLoop
from .records import Replay
from .registry import ReplayAdapter
from .replay import REJECTED, Draft, replay_with_agreement
from .stack import DraftToken

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


class ChainReplay(ReplayAdapter):
    """Its drafts along an answer follow from what it makes of the answer's own tokens.

    Tokens after the first rejected one, and past the answer's end, are only counted. Where
    `min_confidence` stops a draft, the loop may draft more or fewer of those.
    """

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        """Each as drafted on the true prefix; fewer where an answer has no more."""
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


def sure_part(run: list[DraftToken], k: int, min_confidence: float) -> list[int]:
    """k tokens, or those before the first that is not confident enough. What is missing of k lies
    past the answer's end, and is REJECTED."""
    ids = list[int]()
    for each in run:
        if each.confidence < min_confidence:
            return ids
        ids.append(each.token)
    return ids + [REJECTED] * (k - len(ids))
