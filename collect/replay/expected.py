"""What an arm's loop does on average while it writes an answer that the target has drawn.

Given the answer, a drafted token is accepted with min(1, q / p), drafts that are not drawn with 1
or 0, each independently of the others (Leviathan et al., section 2.3, conditioned on what came
out). So rounds and accepted tokens need no drawing, or, where the draft length remembers what was
accepted before, only the drawing of acceptances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from decoders.tally import count_width

from .protocols import ReplayedLoop
from .records import Expected, Replay
from .replay import REJECTED, Draft, replay

RUNS = 32  # simulated acceptances of one answer

# (at, k) -> the chance of each token of the draft that follows the answer's first `at`, at most k,
# to be accepted once those before it are; of tokens past the answer's end, anything
Chances = Callable[[int, int], Sequence[float]]


def expected(tokens: int, chances: Chances, k: int, max_new_tokens: int) -> Expected:
    """Exactly, where every round drafts k tokens, or what is left of `max_new_tokens`.

    tokens: of the answer; the first comes from the prompt's own pass.
    """
    begins = np.zeros(tokens + 1)  # the probability that a round begins after i tokens
    begins[1:2] = 1.0
    rounds = drafted = accepted = 0.0
    widths = list[float]()
    for at in range(1, tokens):
        reached = begins[at]
        if reached == 0:
            continue
        most = min(k, max_new_tokens - at - 1)
        draft = chances(at, most) if most > 0 else []
        rounds += reached
        drafted += reached * len(draft)
        count_width(widths, len(draft) + 1, float(reached))
        for place, chance in enumerate(draft[: tokens - at], at + 1):
            begins[place] += reached * (1 - chance)
            reached *= chance
            accepted += reached
        if at + len(draft) < tokens:  # else the answer ended within the draft
            begins[at + len(draft) + 1] += reached
    return Expected(float(rounds), float(drafted), float(accepted), "exact", widths=widths)


def simulated(
    answer: Sequence[int],
    drafts: Callable[[NDArray[np.float64]], Draft],
    loop: ReplayedLoop,
    seed: int,
) -> Expected:
    """The mean of RUNS replays in which acceptances are drawn.

    drafts: what one run drafts, given the run's heights [n]: the token in place i is accepted where
        its chance is above heights[i].
    seed: of the heights; arms that share it differ by their chances alone.
    """
    heights = spread(RUNS, len(answer), seed)
    runs = list[Replay]()
    for row in heights:  # one at a time: they may share what they copy from
        runs.append(replay(answer, drafts(row), loop))
    rounds, drafted, accepted = np.mean([[r.rounds, r.drafted, r.accepted] for r in runs], axis=0)
    counted = [r.calls for r in runs if r.calls is not None]
    steps = float(np.mean(counted)) if counted else None
    each = zip_longest(*(r.widths for r in runs), fillvalue=0)
    widths = [sum(counts) / len(runs) for counts in each]
    return Expected(float(rounds), float(drafted), float(accepted), "simulated", steps, widths)


def spread(runs: int, places: int, seed: int) -> NDArray[np.float64]:
    """[runs, places] uniform in [0, 1), at each place one from every 1 / runs: means over the runs
    are unbiased and vary less (Latin hypercube sampling; McKay et al., 1979)."""
    rng = np.random.default_rng(seed)
    cells = rng.permuted(np.tile(np.arange(runs)[:, None], places), axis=0)
    made: NDArray[np.float64] = (cells + rng.random(cells.shape)) / runs
    return made


def drawn(answer: Sequence[int], chances: Chances, heights: NDArray[np.float64]) -> Draft:
    """The answer's own tokens where they are accepted, REJECTED where not and past its end."""

    def draft(at: int, k: int) -> list[int]:
        made = chances(at, k)
        own = [
            token if height < chance else REJECTED
            for token, height, chance in zip(answer[at:], heights[at:], made, strict=False)
        ]
        return own + [REJECTED] * (len(made) - len(own))

    return Draft(draft)
