"""Costs of a target's passes by their width, how far to draft by that, and when to try again: as
numbers alone, without PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class PassCosts:
    """verify_s: seconds of one pass of the target over i + 1 tokens; at least one.
    busy: what a pass usually took over the least of its width while this was measured, 1 on a quiet
        machine.
    """

    verify_s: tuple[float, ...]
    busy: float = 1.0

    def __hash__(self) -> int:  # of all seconds it takes longer than what is looked up by it
        return hash(self.verify_s[0])

    def __call__(self, width: float) -> float:
        """Seconds of a pass over `width` >= 1 tokens, which need not be a whole number.

        A straight line between the measured widths. Beyond the widest, each token more costs what
        it did on average up to there: the last step alone may be that of a kernel which takes
        several rows at a time, and the widest pass's share per token would charge every token for
        the weights, which are read once. Where one width was measured, its share per token.
        """
        least, widest = self.verify_s[0], len(self.verify_s)
        if widest == 1:
            return least * width
        if width >= widest:
            a_token = max(0.0, self.verify_s[-1] - least) / (widest - 1)
            return self.verify_s[-1] + (width - widest) * a_token
        below = int(width)
        low, high = self.verify_s[below - 1 : below + 1]
        return low + (width - below) * (high - low)

    def turns(self) -> float:
        """What a pass of a model that reads for one answer at a time costs in passes over one
        token, over what it costs beside no other answer: each answer waits for all of them."""
        return 1.0

    def ratios(self, longest: int) -> tuple[float, ...]:
        """At index k, a pass over k + 1 tokens in passes over one, up to k = longest."""
        return _ratios(self, longest)

    def best_cut(self, chances: Sequence[float]) -> int:
        """How many drafted tokens to send to the target: the fewest that give the most tokens a
        second, as a round gives 1 + sum(chances[:k]) tokens for one pass over k + 1.

        chances: at i, that the first i + 1 drafted tokens are all accepted.
        """
        expected = itertools.accumulate(chances, initial=1.0)
        return fastest(list(expected), self.ratios(len(chances)))


def fastest(tokens: Sequence[float], seconds: Sequence[float]) -> int:
    """Which of several drafts gives the most tokens a second, the first of equals.

    tokens, seconds: that a round with each of them gives and takes, in any unit.
    """
    speeds = [given / taken for given, taken in zip(tokens, seconds, strict=True)]
    return speeds.index(max(speeds))


@lru_cache(1024)  # asked for in every round of every answer
def _ratios(costs: PassCosts, longest: int) -> tuple[float, ...]:
    one = costs(1)
    return tuple(costs(k + 1) / one for k in range(longest + 1))


# What drafting should gain, from acceptance rates and costs alone: the expected walltime
# improvement factor (EWIF; Chen et al., Cascade Speculative Drafting, section 4) takes each draft's
# acceptance for the toss of a coin. Costs are in target passes of one token: a drafter's is the
# seconds (or the parameters) of its pass over the target's.

_CERTAIN = 1 - 1e-9  # the closed forms divide by 1 - acceptance


def speculative(acceptance: float, cost: float, k: int, verify: float = 1.0) -> float:
    """EWIF of drafting k tokens a round (Leviathan et al., theorem 3.8; Chen et al., 4.2).

    (1 - a^(k+1)) / ((1 - a) (k c + v)). verify: the pass over k + 1 tokens; the papers take 1.
    """
    a = min(acceptance, _CERTAIN)
    return (1 - a ** (k + 1)) / ((1 - a) * (k * cost + verify))


def horizontal(acceptances: Sequence[float], costs: Sequence[float]) -> float:
    """EWIF where the i-th drafted token is accepted with acceptances[i] and costs costs[i] (Chen et
    al., theorem 4.5)."""
    accepted = itertools.accumulate(acceptances, lambda p, a: p * a, initial=1.0)
    return sum(accepted) / (1 + sum(costs))


def best_length(
    acceptance: float, cost: float, longest: int, verify: Sequence[float] | None = None
) -> int:
    """The k in 0..longest with the greatest EWIF; the shorter on a tie.

    verify: cost of the target pass for each k, all 1 by default.
    """
    passes = verify if verify is not None else [1.0] * (longest + 1)
    tokens = itertools.accumulate(acceptance**k for k in range(longest + 1))
    return fastest(list(tokens), [k * cost + passes[k] for k in range(longest + 1)])


FIRST_WAIT, LONGEST_WAIT = 4, 64  # rounds without a draft after a rejected one


class ProbeSchedule:
    """Exponential back-off within one answer: after a rejected probe wait FIRST_WAIT rounds,
    doubling up to LONGEST_WAIT; an accepted draft resets it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a draft is expected to pay."""
        self._left, self._wait = 0, FIRST_WAIT

    def should_probe(self) -> bool:
        """Whether a round in which no draft is expected to pay makes one; asked once a round."""
        self._left -= self._left > 0
        return self._left == 0

    def rejected(self) -> None:
        """None of a draft's tokens was accepted."""
        self._left, self._wait = self._wait + 1, min(2 * self._wait, LONGEST_WAIT)
