"""An arm's greedy loop replayed along an answer that is already known: exact, and no target needed.

At temperature 0 a draft is accepted as far as it equals the target's own answer, so one forward of
the drafter over that answer tells every round that decoding would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..protocols import DraftLength
from ..records import StepStats
from .records import Replay


def replay(
    answer: Sequence[int],
    draft: Callable[[int, int], Sequence[int]],
    length: DraftLength,
    agree: list[bool],
    draft_s: float = 0.0,
    verify_s: Callable[[int], float] = lambda width: 0.0,
    calls: Callable[[], int] | None = None,
) -> Replay:
    """draft(at, k): at most k tokens proposed to follow answer[:at]. Times feed an adaptive
    length. The answer's last token counts as the target's own; where it ended the answer early,
    the loop may have drafted it, and more beyond it that is not counted here. calls: those of the
    drafter so far, where drafted tokens do not tell."""
    length.reset()
    at, rounds, drafted, accepted = 1, 0, 0, 0
    while at < len(answer):
        k = min(length.next(), len(answer) - at - 1)
        proposed = list(draft(at, k)) if k > 0 else []
        right = 0
        while right < len(proposed) and proposed[right] == answer[at + right]:
            right += 1
        rounds += 1
        drafted += len(proposed)
        accepted += right
        length.observe(
            StepStats(len(proposed), right, draft_s * len(proposed), verify_s(len(proposed) + 1))
        )
        at += right + 1
    return Replay(agree, rounds, drafted, accepted, None if calls is None else calls())
