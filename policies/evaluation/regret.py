"""What a policy loses against the oracle, and where it loses against plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .decisions import Decisions


@dataclass(frozen=True)
class Regret:
    """A policy that takes its most likely arm, compared with the best arm of every query.

    mean: what the oracle earns more, in units of the reward, mean over queries.
    gap_closed: the policy's share of the oracle's gain over the best fixed arm; below 0 where it is
        worse than that arm; None where the oracle gains nothing.
    worse_than_plain: the share of queries on which its arm earns less than plain decoding; None
        where the table has no such arm.
    queries: how many counted; one whose chosen arm failed does not.
    """

    mean: float
    gap_closed: float | None
    worse_than_plain: float | None
    queries: int


def regret(made: Decisions, plain: str | None = None) -> Regret:
    """The regret of a policy's decisions. plain: the arm that does not draft."""
    table, ours, fixed, oracle = made.table, made.reward, made.best_fixed, made.oracle
    seen = ~np.isnan(ours) & ~np.isnan(fixed)
    left = float((oracle - ours)[seen].mean()) if seen.any() else float("nan")
    gap = float((oracle - fixed)[seen].mean()) if seen.any() else 0.0
    worse = None
    if plain in table.arms:
        plainly = table.rewards[:, table.arms.index(str(plain))]
        both = seen & ~np.isnan(plainly)
        # a rounding error is not a loss
        worse = float((ours < plainly - 1e-9)[both].mean()) if both.any() else None
    return Regret(left, 1 - left / gap if gap > 0 else None, worse, int(seen.sum()))
