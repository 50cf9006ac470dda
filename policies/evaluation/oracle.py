"""The best arm of every query, with the optimism of noise taken off where answers were repeated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..records import Float64, RewardTable


@dataclass(frozen=True, eq=False)
class Oracle:
    """What choosing the best arm of every query earns.

    values: [n].
    repeated: queries that are in the table more than once, whose noise is taken off.
    single: the others.
    """

    values: Float64
    repeated: int
    single: int


def oracle_of(table: RewardTable, seed: int = 0) -> Oracle:
    """The oracle of a table without gaps.

    Rows of one query with the same features are repeats of one query. The best of several noisy
    rewards looks better than it is; where a query has repeats, they are parted at random into two
    halves, the arm that is best on the one is valued on the other, and the other way round, and
    both values are averaged. A query that is there once counts at its maximum, which is exact
    where the reward has no noise, and optimistic where it has.
    """
    members: dict[tuple[str, bytes], list[int]] = {}
    for i, query in enumerate(table.query_of):
        members.setdefault((query, table.features[i].tobytes()), []).append(i)
    values = table.rewards.max(axis=1)
    rng = np.random.default_rng(seed)
    repeated = [np.array(rows) for rows in members.values() if len(rows) > 1]
    for rows in repeated:
        drawn = rng.permutation(rows)
        halves = drawn[: len(rows) // 2], drawn[len(rows) // 2 :]
        values[rows] = (_chosen_on(table, *halves) + _chosen_on(table, *halves[::-1])) / 2
    return Oracle(values, len(repeated), len(members) - len(repeated))


def _chosen_on(table: RewardTable, one: NDArray[np.intp], other: NDArray[np.intp]) -> float:
    arm = int(table.rewards[one].mean(axis=0).argmax())
    return float(table.rewards[other, arm].mean())
