"""An arm's loop replayed along an answer that is already known: exact, and no target needed.

A draft is accepted as far as it equals the target's own answer, at any temperature, so one forward
of the drafter over that answer gives every round that decoding would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from decoders.earlier.prefixes import agreeing
from decoders.records import StepStats
from decoders.tally import count_width

from .protocols import KnownAnswers, ReplayedLoop
from .records import Replay
from .registry import ReplayAdapter
from .stack import DraftToken

# (row, at, k) -> the k tokens that would follow the first `at` >= 1 of answers[row]
DraftTokens = Callable[[int, int, int], list[DraftToken]]


class ChainReplay(ReplayAdapter):
    """Its drafts along an answer follow from what it makes of the answer's own tokens.

    Tokens after the first rejected one, and past the answer's end, are only counted. Where
    `min_confidence` stops a draft, the loop may draft more or fewer of those.

    later: unread tokens that the drafter leaves to its next draft, and reads in a step of their own
        where they are more; None where it reads along with the target.
    """

    later: int | None

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        """Each as drafted on the true prefix; fewer where an answer has no more. None where the
        answers cannot be read together."""
        raise NotImplementedError

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        tokens = self.tokens(answers)
        if tokens is None:
            return None

        def begin(row: int, min_confidence: float) -> Draft:
            return Draft(lambda at, k: sure_part(tokens(row, at, k), k, min_confidence))

        return replay_each(answers, begin, loop)


def sure_part(run: list[DraftToken], k: int, min_confidence: float) -> list[int]:
    """k tokens, or those before the first that is not confident enough. What is missing of k lies
    past the answer's end, and is REJECTED."""
    ids = list[int]()
    for each in run:
        if each.confidence < min_confidence:
            return ids
        ids.append(each.token)
    return ids + [REJECTED] * (k - len(ids))


REJECTED = -1  # stands for a drafted token that is not the answer's


class Draft(NamedTuple):
    """The drafts along one answer.

    draft: (at, k) -> at most k tokens to follow answer[:at], 1 <= at < len(answer) growing; the
        draft may go on past the answer's end, where its tokens are only counted. None for k = 0,
        but what is known by then is kept.
    calls: the steps of the drafter's models so far; None where each drafted token is one.
    """

    draft: Callable[[int, int], Sequence[int]]
    calls: Callable[[], int] | None = None


def replay(
    answer: Sequence[int], drafts: Draft, loop: ReplayedLoop, agree: list[bool] | None = None
) -> Replay:
    """Round after round. As in the loop, a draft is bounded by what is left of `max_new_tokens`,
    and all of its tokens count as drafted, those past the answer's end included."""
    length, last = loop.length, loop.max_new_tokens - 1
    length.reset()
    at, rounds, drafted, accepted, widths = 1, 0, 0, 0, list[int]()
    while at < len(answer):
        k = min(length.next(), last - at)
        proposed = list(drafts.draft(at, max(k, 0)))
        right = agreeing(proposed, list(answer[at : at + len(proposed)]))
        rounds += 1
        drafted += len(proposed)
        accepted += right
        count_width(widths, len(proposed) + 1, 1)
        draft_s, verify_s = loop.draft_s * len(proposed), loop.verify_s(len(proposed) + 1)
        length.observe(StepStats(len(proposed), right, draft_s, verify_s))
        at += right + 1
    calls = None if drafts.calls is None else drafts.calls()
    return Replay(agree or [], rounds, drafted, accepted, calls, widths)


def agreement(answer: Sequence[int], drafts: Draft) -> list[bool]:
    """Per token, whether it would be drafted given all before it; the first counts as drafted."""
    return [at == 0 or list(drafts.draft(at, 1)) == [token] for at, token in enumerate(answer)]


def replay_each(
    answers: KnownAnswers, begin: Callable[[int, float], Draft], loop: ReplayedLoop
) -> list[Replay]:
    """Along each answer one pass for the agreement if the loop asks for it, a draft of one token
    everywhere, and another for the rounds.

    begin: starts over at the beginning of the answer of that row; given the confidence below which
        a draft stops.
    """
    made = []
    for row, answer in enumerate(answers.ids):
        agree = agreement(answer, begin(row, 0.0)) if loop.agreement else None
        made.append(replay(answer, begin(row, loop.length.min_confidence), loop, agree))
    return made
