"""What drafting should gain, from acceptance rates and costs alone.

The expected walltime improvement factor (EWIF; Chen et al., Cascade Speculative Drafting, section
4) takes every draft's acceptance for the toss of a coin. Costs are in target passes of one token: a
drafter's is the seconds (or the parameters) of its pass over the target's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

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


def vertical(
    acceptance: float,
    inner_acceptance: float,
    cost: float,
    inner_cost: float,
    verifications: int,
    k: int,
) -> float:
    """EWIF of a drafter that is sped up by a smaller one (Chen et al., theorem 4.3).

    The inner drafter writes k tokens, the drafter verifies them and adds its own; that happens
    `verifications` times, then the target verifies all of it.

    acceptance: of the drafter's tokens by the target.
    inner_acceptance: of the inner drafter's tokens by the drafter.
    cost, inner_cost: of a token, in target passes.
    """
    a = min(acceptance, _CERTAIN)
    tokens = (1 - a * acceptance_pgf(inner_acceptance, k, a) ** verifications) / (1 - a)
    return tokens / (1 + verifications * cost + verifications * k * inner_cost)


def acceptance_pgf(acceptance: float, k: int, x: float) -> float:
    """sum_j P(a round gives j tokens) x^j, for k drafted tokens (Chen et al., theorem 4.1)."""
    ax = min(acceptance * x, _CERTAIN)
    return 1 + (x - 1) * (1 - ax ** (k + 1)) / (1 - ax)


def best_length(
    acceptance: float, cost: float, longest: int, verify: Sequence[float] | None = None
) -> int:
    """The k in 0..longest with the greatest EWIF; the shorter on a tie.

    verify: cost of the target pass for each k, all 1 by default.
    """
    passes = verify if verify is not None else [1.0] * (longest + 1)
    return max(range(longest + 1), key=lambda k: (speculative(acceptance, cost, k, passes[k]), -k))


def best_horizontal(
    acceptances: Sequence[float], costs: Sequence[float], longest: int
) -> tuple[tuple[int, ...], float]:
    """How many tokens each drafter in turn should write, at most `longest` together, and the EWIF.

    acceptances, costs: of each drafter, in the order in which they write.
    """

    def value(lengths: tuple[int, ...]) -> float:
        rates = [a for a, n in zip(acceptances, lengths, strict=True) for _ in range(n)]
        return horizontal(rates, [c for c, n in zip(costs, lengths, strict=True) for _ in range(n)])

    return _best(list(_splits(longest, len(costs))), value)


def best_vertical(
    acceptance: float, inner_acceptance: float, cost: float, inner_cost: float, longest: int
) -> tuple[tuple[int, ...], float]:
    """(verifications, k) with the greatest EWIF where at most `longest` tokens reach the target,
    and that EWIF."""

    def value(lengths: tuple[int, ...]) -> float:
        return vertical(acceptance, inner_acceptance, cost, inner_cost, *lengths)

    every = [(n, k) for n in range(longest + 1) for k in range(longest + 1)]
    return _best([(n, k) for n, k in every if n * (k + 1) <= longest], value)


def _splits(most: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every tuple of `parts` counts whose sum is at most `most`."""
    if parts == 0:
        yield ()
        return
    for first in range(most + 1):
        for rest in _splits(most - first, parts - 1):
            yield (first, *rest)


def _best(
    every: Sequence[tuple[int, ...]], value: Callable[[tuple[int, ...]], float]
) -> tuple[tuple[int, ...], float]:
    best = max(every, key=lambda lengths: (value(lengths), -sum(lengths)))
    return best, value(best)


def swi(tokens: int, target_cost: float, passes: Iterable[tuple[int, float]]) -> float:
    """Standardized walltime improvement (Chen et al., section 5.1): the speed-up over one target
    pass a token if every pass took a fixed time. 0 tokens give 0.

    passes: (how many, cost of one) of every model, the target among them; costs are parameter
        counts or seconds.
    """
    spent = sum(count * cost for count, cost in passes)
    return tokens * target_cost / spent if spent > 0 else 0.0


@dataclass(frozen=True)
class TableRow:
    """A row of Chen et al., table 1.

    lengths: tokens drafted by each of `drafters`.
    printed: the paper's own figure.
    """

    dataset: str
    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    printed: float

    def ewif(self) -> float:
        """The figure by theorem 4.5."""
        drafted = [d for d, n in zip(self.drafters, self.lengths, strict=True) for _ in range(n)]
        rates = [TABLE_1_ACCEPTANCE[self.dataset][drafter] for drafter in drafted]
        return horizontal(rates, [TABLE_1_COST[drafter] for drafter in drafted])


# The paper takes both from elsewhere and prints neither. Acceptance at temperature 0 is that of
# Leviathan et al., table 3 (drafts of T5-small and T5-base for T5-XXL). Costs are ratios of
# parameters, 77M and 248M over 11.1B, to two digits: with them all six figures come out, and every
# length of a single drafter is the best one.
TABLE_1_ACCEPTANCE = {
    "CNNDM": {"small": 0.65, "base": 0.73},
    "ENDE": {"small": 0.75, "base": 0.80},
}
TABLE_1_COST = {"small": 0.0069, "base": 0.022}
TABLE_1 = (
    TableRow("CNNDM", ("small",), (9,), 2.65),
    TableRow("CNNDM", ("base",), (8,), 2.96),
    TableRow("CNNDM", ("base", "small"), (5, 3), 3.03),
    TableRow("ENDE", ("small",), (12,), 3.61),
    TableRow("ENDE", ("base",), (11,), 3.75),
    TableRow("ENDE", ("base", "small"), (5, 8), 3.93),
)
