"""What drafting should gain, from acceptance rates and costs alone.

The expected walltime improvement factor (EWIF; Chen et al., Cascade Speculative Drafting, section
4) takes every draft's acceptance for the toss of a coin. Costs are in target passes of one token: a
drafter's is the seconds (or the parameters) of its pass over the target's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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
    return max(range(longest + 1), key=lambda k: (speculative(acceptance, cost, k, passes[k]), -k))


def swi(tokens: int, target_cost: float, passes: Iterable[tuple[int, float]]) -> float:
    """Standardized walltime improvement (Chen et al., section 5.1): the speed-up over one target
    pass a token if every pass took a fixed time. 0 tokens give 0.

    passes: (how many, cost of one) of every model, the target among them; costs are parameter
        counts or seconds.
    """
    spent = sum(count * cost for count, cost in passes)
    return tokens * target_cost / spent if spent > 0 else 0.0
