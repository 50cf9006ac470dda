"""Decisions of a policy on every query, their reward, and where it loses to plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Float64, Policy, RewardTable
from .evaluate import aligned, greedy_probs, per_query, references
from .units import units_of


@dataclass(frozen=True, eq=False)
class Decisions:
    """A policy's most likely arm on every row of a table.

    taken: [n] the arm's place in the table's arms; chance: [n] its probability.
    reward: [n] what it earns; nan where it failed.
    best_fixed, oracle: [n] what the best fixed arm and the best arm of the row earn.
    best: [n] the place of the latter.
    """

    table: RewardTable
    taken: NDArray[np.intp]
    chance: Float64
    reward: Float64
    best_fixed: Float64
    oracle: Float64
    best: NDArray[np.intp]

    def columns(self) -> dict[str, list[Any]]:
        """A column a field, for a table of one row a query."""
        arms = self.table.arms
        return {
            "query": self.table.query_ids,
            "task": self.table.tasks,
            "arm": [arms[i] for i in self.taken],
            "probability": self.chance.tolist(),
            "reward": self.reward.tolist(),
            "best_fixed_reward": self.best_fixed.tolist(),
            "best_arm": [arms[i] for i in self.best],
            "best_reward": self.oracle.tolist(),
        }


def decisions(
    policy: Policy,
    table: RewardTable,
    train: RewardTable | None = None,
    probs: Float64 | None = None,
) -> Decisions:
    """The policy's decisions on the table; train and probs as in `report`."""
    rows = references(table, train)
    probs = aligned(policy, table) if probs is None else probs
    taken = probs.argmax(axis=1)
    return Decisions(
        table=table,
        taken=taken,
        chance=probs[np.arange(len(table)), taken],
        reward=per_query(greedy_probs(probs), table.rewards),
        best_fixed=per_query(rows["best-fixed"], table.rewards),
        oracle=per_query(rows["oracle"], table.rewards),
        best=rows["oracle"].argmax(axis=1),
    )


@dataclass(frozen=True)
class Regret:
    """A policy that takes its most likely arm, compared with the best arm of every query.

    mean: what the oracle earns more, in units of the reward, mean over queries.
    gap_closed: the policy's share of the oracle's gain over the best fixed arm; below 0 where it is
        worse than that arm; None where the oracle gains nothing.
    worse_than_plain: the share of queries on which its arm earns less than plain decoding; None
        where the table has no such arm.
    queries: how many counted; one whose chosen arm failed on all of its rows does not.
    """

    mean: float
    gap_closed: float | None
    worse_than_plain: float | None
    queries: int


def regret(made: Decisions, plain: str | None = None) -> Regret:
    """The regret of a policy's decisions. plain: the arm that does not draft."""
    table, ours, fixed, oracle = made.table, made.reward, made.best_fixed, made.oracle
    seen = ~np.isnan(ours) & ~np.isnan(fixed)
    units = units_of(table, seen)
    left, gap = float("nan"), 0.0
    if units.queries:
        left = float(units.by_query((oracle - ours)[seen]).mean())
        gap = float(units.by_query((oracle - fixed)[seen]).mean())
    worse = None
    if plain in table.arms:
        plainly = table.rewards[:, table.arms.index(str(plain))]
        both = seen & ~np.isnan(plainly)
        lost = (ours < plainly - 1e-9)[both]  # a rounding error is no loss
        worse = float(units_of(table, both).by_query(lost).mean()) if both.any() else None
    return Regret(left, 1 - left / gap if gap > 0 else None, worse, units.queries)
