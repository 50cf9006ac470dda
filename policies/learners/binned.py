"""The best arm for each bin of one feature of the request, such as its temperature, or of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName

from ..base import BasePolicy, as_rows, from_rewards, origin_of
from ..errors import PolicyError
from ..evaluation.bootstrap import grouped_error
from ..evaluation.units import Units, mean_rewards, units_of
from ..records import ANY, Fitted, Float64, Origin, RewardTable

PAIR = ("temperature", "requests-running")  # drafts fail more often, and cost more
MAX_BINS = 8  # distinct values of a feature that have a bin each


@dataclass(frozen=True)
class Bins:
    """Intervals of a number: bin i has edges[i - 1] <= x < edges[i]; the outer ones are open.

    values: each bin's value, where every bin stands for one observed value; otherwise empty.
    """

    edges: tuple[float, ...]
    values: tuple[float, ...] = ()

    def of(self, x: NDArray[Any]) -> NDArray[np.intp]:
        """[n] -> [n], each number's bin."""
        return np.asarray(np.searchsorted(np.array(self.edges), x, side="right"), dtype=np.intp)

    def names(self) -> list[str]:
        """A bin's value, or its limits in words."""
        if self.values:
            return [f"{value:g}" for value in self.values]
        if not self.edges:
            return ["all"]
        between = zip(self.edges, self.edges[1:], strict=False)
        inner = [f"{low:g} to {high:g}" for low, high in between]
        return [f"below {self.edges[0]:g}", *inner, f"from {self.edges[-1]:g}"]


def bins_of(x: NDArray[Any], most: int) -> Bins:
    """A bin for each distinct value where there are at most `most`, with edges half-way between
    them; otherwise four bins of about equal size."""
    seen = np.unique(np.asarray(x, dtype=np.float64))
    if len(seen) <= most:
        edges = (seen[:-1] + seen[1:]) / 2
        # float32 values written as they were given: 0.7, not 0.69999999
        values = tuple(float(f"{value:.6g}") for value in seen)
        return Bins(tuple(float(edge) for edge in edges), values)
    cuts = np.unique(np.quantile(np.asarray(x, dtype=np.float64), [0.25, 0.5, 0.75]))
    return Bins(tuple(float(cut) for cut in cuts if cut > seen[0]))


def splitting_features(table: RewardTable) -> list[str]:
    """The features that split the table's rows into at least two bins, temperature first.

    Where two features split the rows the same way, as temperature and greedy do where there are two
    temperatures, only the first is returned.
    """
    names = sorted(table.feature_names, key=lambda name: name != "temperature")
    found: dict[bytes, str] = {}
    for name in names:
        x = table.features[:, table.feature_names.index(name)]
        _, first, which = np.unique(
            bins_of(x, MAX_BINS).of(x), return_index=True, return_inverse=True
        )
        if len(first) > 1:
            found.setdefault(first[which].tobytes(), name)  # each row's first companion
    return list(found.values())


def splitting_pairs(table: RewardTable) -> list[tuple[str, str]]:
    """Pairs of features to bin together: PAIR, where both split the table's rows."""
    first, second = PAIR
    return [PAIR] if {first, second} <= set(splitting_features(table)) else []


class BinnedPolicy(BasePolicy):
    """Bins one feature or two, ignores the query, and takes the arm that is best in the bin.

    A binned one-feature policy is a decision stump with several branches.

    edges: [b - 1], ascending, as in `Bins`.
    rewards: [b, A], the expected reward of each arm in each bin; with two features [b * c, A], the
        second's bins next to each other.
    second_edges: [c - 1], the second feature's edges; None for a policy of one feature.
    """

    kind = "binned"

    def __init__(
        self, origin: Origin, edges: Float64, rewards: Float64, second_edges: Float64 | None = None
    ) -> None:
        super().__init__(origin)
        rewards = np.asarray(rewards, np.float64)
        axes = [np.asarray(e, np.float64) for e in (edges, second_edges) if e is not None]
        if len(origin.features) != len(axes) or origin.dimension:
            raise PolicyError("a binned policy reads a feature for each of its rows of edges")
        cells = math.prod(axis.size + 1 for axis in axes)
        if any(axis.ndim != 1 for axis in axes) or rewards.shape != (cells, len(origin.arms)):
            raise PolicyError("a binned policy needs one row of rewards for each bin")
        if not np.isfinite(rewards).all() or any((np.diff(axis) <= 0).any() for axis in axes):
            raise PolicyError("a binned policy's edges ascend, and its rewards are numbers")
        self._axes, self._rewards = axes, rewards

    def scores(self, x: Any) -> Float64:
        rows = as_rows(x, self.origin.width)  # [n, 1 or 2]
        bins = [Bins(tuple(axis)) for axis in self._axes]
        return self._rewards[cells_of(bins, rows)]

    def probabilities(self, scores: Float64) -> Float64:
        return from_rewards(scores, temperature=0.0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        axes = zip(("edges", "second_edges"), self._axes, strict=False)
        return {**dict(axes), "rewards": self._rewards}

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> BinnedPolicy:
        return cls(origin, **arrays)


def cells_of(bins: Sequence[Bins], x: NDArray[Any]) -> NDArray[np.intp]:
    """[n, number of bins] -> [n], the number of each row's bins together, the last one's
    counting fastest."""
    found = np.zeros(len(x), dtype=np.intp)
    for column, each in enumerate(bins):
        found = found * (len(each.edges) + 1) + each.of(x[:, column])
    return found


def fit_binned(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    feature: str = "temperature",
    second_feature: str = "",
    most: int = MAX_BINS,
    prior: float = 10.0,
    caution: float = 1.0,
) -> Fitted:
    """The best arm for each bin of one feature, shrunk towards the best fixed arm.

    feature: the table's feature to bin.
    second_feature: another feature; each pair of bins then has a best arm. Empty for none.
    most: the largest number of distinct values that get a bin each; above it there are four bins.
    prior: the number of queries, at the means of the whole table, that are added to every bin, so
        that a bin of few queries takes the best fixed arm.
    caution: the number of standard errors of its difference to the best fixed arm by which an arm's
        reward in a bin is lowered, so that the best fixed arm wins near ties.

    Raises PolicyError for a feature that the table lacks and for an option out of range.
    """
    names = tuple(filter(None, (feature, second_feature)))
    for name in names:
        if name not in table.feature_names:
            raise NoSuchName("feature", name, table.feature_names)
    if len(set(names)) < len(names):
        raise PolicyError(f"a binned policy reads {feature} once; name another second_feature")
    if most < 1 or prior < 0 or caution < 0:
        raise PolicyError("most must be at least 1, prior and caution at least 0")
    seen = table.filled()
    x = seen.features[:, [seen.feature_names.index(name) for name in names]]
    bins = [bins_of(column, most) for column in x.T]
    cells, cell = math.prod(len(each.edges) + 1 for each in bins), cells_of(bins, x)
    overall = mean_rewards(seen)
    rewards = np.tile(overall, (cells, 1))
    for each in np.unique(cell):
        units = units_of(seen, cell == each)
        values = units.by_query(seen.rewards[cell == each])  # [Q, A]
        mean = (values.sum(axis=0) + prior * overall) / (len(values) + prior)
        rewards[each] = mean - caution * _errors(values, units, int(overall.argmax()))
    options = {
        "feature": feature,
        "second_feature": second_feature,
        "most": most,
        "prior": prior,
        "caution": caution,
    }
    origin = origin_of("binned", table, seed, options, embedder=ANY, features=names)
    edges = [np.array(each.edges) for each in bins]
    return Fitted(BinnedPolicy(origin, edges[0], rewards, *edges[1:]), [])


def _errors(values: Float64, units: Units, fixed: int) -> Float64:
    """[A]: the standard error of each arm's mean difference to the arm `fixed` over queries whose
    groups alone are independent; 0 with fewer than two groups. values: [Q, A]."""
    apart = values - values[:, [fixed]]
    return np.nan_to_num(grouped_error(apart - apart.mean(axis=0), units.group_of_query))
