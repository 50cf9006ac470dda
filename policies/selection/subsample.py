"""A smaller table to learn from."""

from __future__ import annotations

import numpy as np

from ..errors import PolicyError
from ..records import RewardTable, by_task


def subsample(table: RewardTable, queries: int, seed: int) -> RewardTable:
    """`queries` of the table's, every task in its proportion, with all of their rows.

    For one seed a smaller choice is part of every larger one. Raises PolicyError for fewer than 1
    and for more than there are.
    """
    known = len(set(table.query_of))
    if not 1 <= queries <= known:
        raise PolicyError(
            f"cannot learn from {queries} queries: the table has {known}; take 1 to {known}, or "
            "collect more"
        )
    rng = np.random.default_rng(seed)
    place: dict[str, float] = {}  # where in its task's random order, from 0 to 1
    for members in by_task(table.query_of, table.tasks).values():
        for rank, i in enumerate(rng.permutation(len(members))):
            place[members[i]] = (rank + rng.random()) / len(members)
    kept = set(sorted(place, key=lambda query: place[query])[:queries])
    return table.rows([i for i, query in enumerate(table.query_of) if query in kept])
