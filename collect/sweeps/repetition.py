"""Degenerate repetition: answers that repeat themselves to the end, where a drafter that copies
looks too good."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 48
LEAST_REPEATS = 3
LEAST_TOKENS = 16


def is_repetitive(ids: Sequence[int], eos_ids: Sequence[int] = ()) -> bool:
    """Whether the answer ends in an n-gram repeated 3 times or more, over 16 tokens or more.

    ids: the new tokens. A last token in eos_ids is not looked at. The last repeat may be cut short.
    """
    end = len(ids)
    if end and ids[end - 1] in eos_ids:
        end -= 1
    for period in range(1, min(LONGEST_PERIOD, end // 2) + 1):
        same = 0  # how many tokens, from the end, equal the one a period before
        while same < end - period and ids[end - 1 - same] == ids[end - 1 - same - period]:
            same += 1
        if same >= (LEAST_REPEATS - 1) * period and same + period >= LEAST_TOKENS:
            return True
    return False
