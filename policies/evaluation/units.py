"""Units that are counted: rows are averaged over their query, and only groups of queries are
independent; the arm that is best by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Float64, RewardTable
from .bootstrap import RESAMPLES, group_index, group_means, group_sums, resample


@dataclass(frozen=True, eq=False)
class Units:
    """The queries and groups of a table's rows.

    query_of_row: [n] each row's query, from 0, in the order in which the queries first come.
    group_of_query: [Q] each query's group, likewise.
    weights: [n], as of RewardTable.
    """

    query_of_row: NDArray[np.intp]
    group_of_query: NDArray[np.intp]
    weights: Float64 | None = None

    @property
    def queries(self) -> int:
        return len(self.group_of_query)

    @property
    def groups(self) -> int:
        return int(self.group_of_query.max(initial=-1)) + 1

    def __str__(self) -> str:
        """How many, in words: "60 queries", or "60 queries of 12 sources"."""
        of = "" if self.groups == self.queries else f" of {self.groups:,} sources"
        return f"{self.queries:,} queries{of}"

    def by_query(self, values: NDArray[Any]) -> Float64:
        """[n, ...] to [Q, ...], the mean of each query's rows by their weights."""
        return group_means(values, self.query_of_row, self.weights)

    @property
    def share_of_row(self) -> Float64:
        """[n], what each row counts in the mean over queries; they sum to 1."""
        weights = np.ones(len(self.query_of_row)) if self.weights is None else self.weights
        of_query = group_sums(weights, self.query_of_row)[self.query_of_row]
        return np.asarray(weights / of_query / self.queries, dtype=np.float64)

    def resample(self, seed: int, resamples: int = RESAMPLES) -> Float64:
        """[B, G], as of `bootstrap.resample`: groups are drawn, with all of their queries."""
        return resample(self.groups, seed, resamples)


def units_of(table: RewardTable, kept: NDArray[np.bool_] | None = None) -> Units:
    """Count the table's rows; those that are kept [n] alone where it is given."""
    rows = list(range(len(table))) if kept is None else np.flatnonzero(kept).tolist()
    query = group_index([table.query_of[row] for row in rows])
    group_of = dict(zip(query.tolist(), (table.groups[row] for row in rows), strict=True))
    weights = None if table.weights is None else table.weights[rows]
    return Units(query, group_index([group_of[each] for each in range(len(group_of))]), weights)


def independent(queries: int) -> Units:
    """Count queries with one row each that have nothing in common."""
    each = np.arange(queries)
    return Units(each, each)


def best_fixed_index(table: RewardTable) -> int:
    """The arm with the highest of the `mean_rewards`."""
    return int(mean_rewards(table).argmax())


def mean_rewards(table: RewardTable) -> Float64:
    """[A], each arm's mean over queries, each counted once; a failure counts as the row's worst
    reward."""
    seen = table.filled()
    return np.asarray(units_of(seen).by_query(seen.rewards).mean(axis=0), dtype=np.float64)
