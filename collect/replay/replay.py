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

from .protocols import ReplayedLoop
from .records import Replay

REJECTED = -1  # stands for a drafted token that is not the answer's


class Draft(NamedTuple):
    """What a drafter drafts along one answer.

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


def replay_with_agreement(
    answer: Sequence[int], begin: Callable[[float], Draft], loop: ReplayedLoop
) -> Replay:
    """One pass for the agreement if the loop asks for it, a draft of one token everywhere, and
    another for the rounds.

    begin: starts over at the answer's beginning; given the confidence below which a draft stops.
    """
    agree = agreement(answer, begin(0.0)) if loop.agreement else None
    return replay(answer, begin(loop.length.min_confidence), loop, agree)
