"""The best arm of every query, with the optimism of noise taken off where answers were repeated.

Choosing by all of an arm's noisy rewards and valuing it by the same leans high; choosing by one
half of them and valuing by the other leans low, as half of them chooses worse than all. The truth
lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..records import Float64, RewardTable


@dataclass(frozen=True, eq=False)
class Oracle:
    """The reward of choosing the best arm of every query.

    values: [n], at least, where noise is taken off.
    at_most: [n], with the noise.
    repeated: queries that are in the table more than once, or for which several answers were drawn,
        whose noise is taken off.
    single: the others.
    drawn_once: how many of those are judged by a single drawn answer.
    """

    values: Float64
    at_most: Float64
    repeated: int
    single: int
    drawn_once: int


def oracle_of(table: RewardTable, seed: int = 0) -> Oracle:
    """The oracle of a table without gaps.

    Rows of one query with the same features are repeats of one query. The best of several noisy
    rewards looks better than it is; where a query has repeats, they are parted at random into two
    halves, the arm that is best on the one is valued on the other, and the other way round, and
    both values are averaged. So are the draws of a row (`RewardTable.drawn`). A query that is there
    once counts at its maximum, which is exact where the reward has no noise, and optimistic where
    it has.
    """
    members: dict[tuple[str, bytes], list[int]] = {}
    for i, query in enumerate(table.query_of):
        members.setdefault((query, table.features[i].tobytes()), []).append(i)
    values = table.rewards.max(axis=1)
    at_most = values.copy()
    rng = np.random.default_rng(seed)
    repeated = [np.array(rows) for rows in members.values() if len(rows) > 1]
    for rows in repeated:
        values[rows] = _by_halves(table.rewards[rows], rng)
        at_most[rows] = table.rewards[rows].mean(axis=0).max()
    draws, drawn_once, several = table.draws, 0, 0
    for row in (rows[0] for rows in members.values() if len(rows) == 1):
        drawn_once += int(draws[row] == 1)
        if draws[row] > 1 and table.drawn is not None:
            each = table.drawn[:, row]
            values[row] = _by_halves(each[~np.isnan(each).any(axis=1)], rng)
            several += 1
    found = len(repeated) + several
    return Oracle(values, at_most, found, len(members) - found, drawn_once)


def _by_halves(rewards: Float64, rng: np.random.Generator) -> float:
    """Judge one query by its [k, A] rewards, k > 1."""
    order = rng.permutation(len(rewards))
    one, other = rewards[order[: len(order) // 2]], rewards[order[len(order) // 2 :]]
    return (_chosen_on(one, other) + _chosen_on(other, one)) / 2


def _chosen_on(one: Float64, other: Float64) -> float:
    return float(other[:, int(one.mean(axis=0).argmax())].mean())
