"""Prompt lookup on a row of vLLM's array: what `MaxGramDrafter` drafts, without an index.

An index of every n-gram costs memory and time for each token of each prompt, which a long prompt
pays before its first draft pays back. Here a draft compares the row with its own end by numpy, in
about the time of reading the row once, and nothing is kept between steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from decoders.earlier.votes import Draft


def longest_match(
    ids: NDArray[np.int32], shortest: int, longest: int, earliest: bool = False
) -> tuple[int, int] | None:
    """Where the longest suffix of `ids` that occurred before was followed by a token, and how many
    tokens it has; of several places the last, or the first.

    shortest, longest: tokens of the suffix.
    """
    end = len(ids)
    ends = np.flatnonzero(ids[: end - 1] == ids[end - 1]) + 1  # ends of matches of one token
    best: tuple[int, int] | None = None
    n = 1
    while len(ends) and n <= min(longest, end - 1):
        if n >= shortest:
            best = int(ends[0 if earliest else -1]), n
        n += 1
        ends = ends[ends >= n]
        ends = ends[ids[ends - n] == ids[end - n]]
    return best


def copied(
    ids: NDArray[np.int32],
    k: int,
    shortest: int,
    longest: int,
    acceptance: Callable[[int], float],
    earliest: bool = False,
    stop_below: float = 0.0,
) -> Draft:
    """At most k tokens that followed the longest earlier match; a copy that reaches the end goes on
    into what it has just copied.

    acceptance: the chance that a copied token is accepted, by the length of its match.
    stop_below: end before the chance that the whole draft is accepted is below this.
    """
    made = Draft()
    match = longest_match(ids, shortest, longest, earliest)
    if match is None:
        return made
    source, matched = match
    chance = 1.0
    while len(made.ids) < k:
        chance *= acceptance(matched)
        if chance < stop_below:
            break
        at = source - len(ids)
        made.ids.append(int(ids[source]) if at < 0 else made.ids[at])
        made.chances.append(chance)
        made.matched.append(matched)
        source, matched = source + 1, matched + 1
    return made
