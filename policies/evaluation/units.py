"""Units that are counted: rows are averaged over their query, and only groups of queries are
independent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import Float64, RewardTable
from .bootstrap import RESAMPLES, group_index, group_means, resample


@dataclass(frozen=True, eq=False)
class Units:
    """The queries and groups of a table's rows.

    query_of_row: [n] each row's query, from 0, in the order in which the queries first come.
    group_of_query: [Q] each query's group, likewise.
    """

    query_of_row: NDArray[np.intp]
    group_of_query: NDArray[np.intp]

    @property
    def queries(self) -> int:
        return len(self.group_of_query)

    @property
    def groups(self) -> int:
        return int(self.group_of_query.max(initial=-1)) + 1

    @property
    def group_of_row(self) -> NDArray[np.intp]:
        """[n]"""
        return np.asarray(self.group_of_query[self.query_of_row], dtype=np.intp)

    def __str__(self) -> str:
        """How many, in words: "60 queries", or "60 queries of 12 sources"."""
        of = "" if self.groups == self.queries else f" of {self.groups:,} sources"
        return f"{self.queries:,} queries{of}"

    def by_query(self, values: NDArray[Any]) -> Float64:
        """[n, ...] to [Q, ...], the mean of each query's rows."""
        return group_means(values, self.query_of_row)

    def resample(self, seed: int, resamples: int = RESAMPLES) -> Float64:
        """[B, G], as of `bootstrap.resample`: groups are drawn, with all of their queries."""
        return resample(self.groups, seed, resamples)


def units_of(table: RewardTable, kept: NDArray[np.bool_] | None = None) -> Units:
    """Count the table's rows; those that are kept [n] alone where it is given."""
    rows = range(len(table)) if kept is None else np.flatnonzero(kept).tolist()
    query = group_index([table.query_of[row] for row in rows])
    group_of = dict(zip(query.tolist(), (table.groups[row] for row in rows), strict=True))
    return Units(query, group_index([group_of[each] for each in range(len(group_of))]))


def independent(queries: int) -> Units:
    """Count queries with one row each that have nothing in common."""
    each = np.arange(queries)
    return Units(each, each)
