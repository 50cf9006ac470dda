"""Copies of what followed earlier matches, and the chance that a copied token is accepted, by the
length of its match: measured once for all answers, and learnt again within each, since answers
differ far more than tasks do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...earlier.votes import Draft
from .next_token_table import NextTokenTable

# How often what followed an earlier match of n tokens follows again, for n = 1, 2, ..., in the
# default target's answers at a temperature: greedy ones to 144 held-out queries of six tasks, and
# 2229 and 2256 sampled ones (copy_chances.py at commit 0257472).
COPIED_ACCEPTANCE = {
    0.0: (0.26, 0.57, 0.66, 0.72, 0.76, 0.80, 0.82, 0.82, 0.86, 0.86, 0.90, 0.97),
    0.7: (0.21, 0.45, 0.56, 0.60, 0.64, 0.69, 0.72, 0.74, 0.76, 0.80, 0.80, 0.91),
    1.0: (0.13, 0.31, 0.42, 0.50, 0.52, 0.59, 0.63, 0.67, 0.68, 0.71, 0.73, 0.82),
}
COOL = 0.7
HOPELESS = 0.02  # a draft that is cut by cost is followed while it is accepted this often
BANDS = (1, 2, 3, 5, 8, 12)  # matches from each of these lengths on are counted together


@lru_cache(1024)  # asked for of every copied token
def copied_acceptance(matched: int, temperature: float = 0.0) -> float:
    """Over all answers; between the temperatures that were measured, and beyond, in a line."""
    at = min(matched, len(COPIED_ACCEPTANCE[0.0])) - 1
    low, middle, high = (shares[at] for shares in COPIED_ACCEPTANCE.values())
    if temperature <= COOL:
        return low + (middle - low) * temperature / COOL
    return max(0.0, middle + (high - middle) * (temperature - COOL) / (1.0 - COOL))


class CopyChances:
    """Within one answer.

    weight: number of tokens that the prior over all answers counts for.
    temperature: of the answer.
    """

    def __init__(self, weight: float = 4.0) -> None:
        self._weight = weight
        self.temperature = 0.0
        self.reset()

    def reset(self) -> None:
        self._tried = [0] * len(BANDS)
        self._accepted = [0] * len(BANDS)

    def __call__(self, matched: int) -> float:
        band = _band(matched)
        prior = self._weight * copied_acceptance(matched, self.temperature)
        return (prior + self._accepted[band]) / (self._weight + self._tried[band])

    def observe(self, matched: Sequence[int], accepted: int, known: int) -> None:
        """A copy of len(matched) tokens: for the first `known` it is known whether they are the
        answer's, and the first `accepted` are. What follows a rejected one was never tried."""
        for at in range(min(accepted + 1, known, len(matched))):
            if matched[at]:
                band = _band(matched[at])
                self._tried[band] += 1
                self._accepted[band] += at < accepted


def _band(matched: int) -> int:
    return bisect_right(BANDS, matched) - 1


@dataclass(frozen=True)
class Matches:
    """Matches that are copied after, of `shortest` to `longest` tokens. earliest: the first of
    several places, else the last."""

    shortest: int
    longest: int
    earliest: bool = False

    def find(self, text: NDArray[Any], tail: Sequence[int]) -> tuple[int, int] | None:
        """Place in `text` [S] where the longest suffix of `tail` was followed by a token, and how
        long that suffix is."""
        ends = np.flatnonzero(text[:-1] == tail[-1]) + 1  # of matches of one token
        best, n = None, 1
        while len(ends):
            if n >= self.shortest:
                best = int(ends[0 if self.earliest else -1]), n
            n += 1
            if n > min(self.longest, len(tail)):
                break
            ends = ends[ends >= n]
            ends = ends[text[ends - n] == tail[-n]]
        return best


def copied(
    text: NDArray[Any],
    context: Sequence[int] | NDArray[Any],
    k: int,
    matches: Matches,
    acceptance: Callable[[int], float],
    stop_below: float = 0.0,
    table: NextTokenTable | None = None,
) -> Draft:
    """At most k tokens that followed the longest match; a copy that reaches the end goes on into
    what it has just copied.

    Where k is 3, the context [1, 2, 3, 4, 2, 3] gives [4, 2, 3]: the last two tokens, 2 and 3,
    came before, and were followed by 4, 2, 3.

    text: [S] what is looked through, where `context` begins.
    acceptance: the chance that a copied token is accepted, by the length of its match.
    stop_below, table: as of MaxGramDrafter.
    """
    made, chance = Draft(), 1.0
    line = [int(token) for token in context[-matches.longest :]]
    copying = matches.find(text, line)
    while len(made.ids) < k:
        matched = 0
        if copying is not None:
            source, matched = copying
            at = source - len(context)
            token = int(context[source]) if at < 0 else made.ids[at]
            share = acceptance(matched)
            copying = source + 1, matched + 1
        else:
            found = table.next(line + made.ids) if table is not None else None
            if found is None:
                break
            token, share = found
        chance *= share
        if chance < stop_below:
            break
        made.ids.append(token)
        made.chances.append(chance)
        made.matched.append(matched)
        if copying is None:  # the table's token may complete a known match
            copying = matches.find(text, (line + made.ids)[-matches.longest :])
    return made
