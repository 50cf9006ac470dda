"""The best arm for each band of one feature of the request, such as its temperature, or of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import BasePolicy, as_rows, from_rewards, origin_of
from ..errors import PolicyError, unknown
from ..records import ANY, Fitted, Float64, Origin, RewardTable

TOGETHER = ("temperature", "requests-running")  # drafts fail more often, and cost more
MOST = 8  # distinct values of a feature that have a band each


@dataclass(frozen=True)
class Bands:
    """Intervals of a number: band i has edges[i - 1] <= x < edges[i]; the outer ones are open.

    values: of each band, where it stands for a single value that was seen; else empty.
    """

    edges: tuple[float, ...]
    values: tuple[float, ...] = ()

    def of(self, x: NDArray[Any]) -> NDArray[np.intp]:
        """[n] -> [n], each number's band."""
        return np.asarray(np.searchsorted(np.array(self.edges), x, side="right"), dtype=np.intp)

    def names(self) -> list[str]:
        """A band's value, or its limits in words."""
        if self.values:
            return [f"{value:g}" for value in self.values]
        if not self.edges:
            return ["all"]
        between = zip(self.edges, self.edges[1:], strict=False)
        inner = [f"{low:g} to {high:g}" for low, high in between]
        return [f"below {self.edges[0]:g}", *inner, f"from {self.edges[-1]:g}"]


def bands_of(x: NDArray[Any], most: int) -> Bands:
    """A band for each distinct value where there are `most` at most, parted half-way between them;
    else four bands with about as many numbers in each."""
    seen = np.unique(np.asarray(x, dtype=np.float64))
    if len(seen) <= most:
        edges = (seen[:-1] + seen[1:]) / 2
        # float32 values written as they were given: 0.7, not 0.69999999
        values = tuple(float(f"{value:.6g}") for value in seen)
        return Bands(tuple(float(edge) for edge in edges), values)
    cuts = np.unique(np.quantile(np.asarray(x, dtype=np.float64), [0.25, 0.5, 0.75]))
    return Bands(tuple(float(cut) for cut in cuts if cut > seen[0]))


def parting_features(table: RewardTable) -> list[str]:
    """The features that part the table's rows into bands, temperature first.

    Of two that part them alike, such as temperature and greedy where there are two temperatures,
    the first is taken.
    """
    names = sorted(table.feature_names, key=lambda name: name != "temperature")
    found: dict[bytes, str] = {}
    for name in names:
        x = table.features[:, table.feature_names.index(name)]
        _, first, band = np.unique(bands_of(x, MOST).of(x), return_index=True, return_inverse=True)
        if len(first) > 1:
            found.setdefault(first[band].tobytes(), name)  # each row's first companion
    return list(found.values())


def parting_together(table: RewardTable) -> list[tuple[str, str]]:
    """Pairs of features whose bands are worth looking at together: TOGETHER, where both part the
    table's rows."""
    first, second = TOGETHER
    return [TOGETHER] if {first, second} <= set(parting_features(table)) else []


class BandPolicy(BasePolicy):
    """Reads one feature or two, and nothing of the query; takes the arm that is best in its band.

    edges: [b - 1], ascending, as in `Bands`.
    rewards: [b, A], what an arm is expected to earn in each band; of two features [b * c, A], the
        second's bands next to each other.
    beside: [c - 1], the second feature's edges; None where there is one.
    """

    kind = "bands"

    def __init__(
        self, origin: Origin, edges: Float64, rewards: Float64, beside: Float64 | None = None
    ) -> None:
        super().__init__(origin)
        rewards = np.asarray(rewards, np.float64)
        axes = [np.asarray(e, np.float64) for e in (edges, beside) if e is not None]
        if len(origin.features) != len(axes) or origin.dimension:
            raise PolicyError("a band policy reads a feature for each of its rows of edges")
        cells = math.prod(axis.size + 1 for axis in axes)
        if any(axis.ndim != 1 for axis in axes) or rewards.shape != (cells, len(origin.arms)):
            raise PolicyError("a band policy needs one row of rewards for each band")
        if not np.isfinite(rewards).all() or any((np.diff(axis) <= 0).any() for axis in axes):
            raise PolicyError("a band policy's edges ascend, and its rewards are numbers")
        self._axes, self._rewards = axes, rewards

    def scores(self, x: Any) -> Float64:
        rows = as_rows(x, self.origin.width)  # [n, 1 or 2]
        bands = [Bands(tuple(axis)) for axis in self._axes]
        return self._rewards[cells_of(bands, rows)]

    def probabilities(self, scores: Float64) -> Float64:
        return from_rewards(scores, temperature=0.0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        axes = zip(("edges", "beside"), self._axes, strict=False)
        return {**dict(axes), "rewards": self._rewards}

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> BandPolicy:
        return cls(origin, arrays["edges"], arrays["rewards"], arrays.get("beside"))


def cells_of(bands: Sequence[Bands], x: NDArray[Any]) -> NDArray[np.intp]:
    """[n, number of bands] -> [n], the number of each row's bands together, the last one's
    counting fastest."""
    found = np.zeros(len(x), dtype=np.intp)
    for column, each in enumerate(bands):
        found = found * (len(each.edges) + 1) + each.of(x[:, column])
    return found


def fit_bands(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    feature: str = "temperature",
    beside: str = "",
    most: int = MOST,
    prior: float = 10.0,
    caution: float = 1.0,
) -> Fitted:
    """The best arm for each band of one feature, shrunk towards the best fixed arm.

    feature: which of the table's.
    beside: another one, for each pair of whose bands there is a best arm; empty for none.
    most: so many distinct values have a band each; above that there are four bands.
    prior: so many queries at the means of the whole table are added to every band's own, so that a
        band of few queries takes the best fixed arm.
    caution: an arm's reward in a band is taken to be so many standard errors of its difference to
        the best fixed arm's lower than it is, so that of near ties that one is taken.

    Raises PolicyError for a feature that the table lacks and for an option out of range.
    """
    names = tuple(filter(None, (feature, beside)))
    for name in names:
        if name not in table.feature_names:
            raise unknown("feature", name, table.feature_names)
    if len(set(names)) < len(names):
        raise PolicyError(f"a band policy reads {feature} once; name another feature beside it")
    if most < 1 or prior < 0 or caution < 0:
        raise PolicyError("most must be at least 1, prior and caution at least 0")
    seen = table.filled()
    x = seen.features[:, [seen.feature_names.index(name) for name in names]]
    bands = [bands_of(column, most) for column in x.T]
    cells = math.prod(len(each.edges) + 1 for each in bands)
    member = np.eye(cells)[cells_of(bands, x)]  # [n, b]
    overall, counts = seen.rewards.mean(axis=0), member.sum(axis=0)[:, None]
    rewards = (member.T @ seen.rewards + prior * overall) / np.maximum(counts + prior, 1e-12)
    rewards = np.where(counts + prior > 0, rewards, overall)
    rewards = rewards - caution * _errors(seen.rewards, member, int(overall.argmax()))
    options = {
        "feature": feature,
        "beside": beside,
        "most": most,
        "prior": prior,
        "caution": caution,
    }
    origin = origin_of("bands", table, seed, options, embedder=ANY, features=names)
    edges = [np.array(each.edges) for each in bands]
    return Fitted(BandPolicy(origin, edges[0], rewards, *edges[1:]), [])


def _errors(rewards: Float64, member: Float64, fixed: int) -> Float64:
    """[b, A]: the standard error of each arm's mean difference to the arm `fixed` in each band; 0
    where there are less than two rows. rewards: [n, A]. member: [n, b]."""
    apart = rewards - rewards[:, [fixed]]
    counts = member.sum(axis=0)[:, None]
    means = member.T @ apart / np.maximum(counts, 1)
    squares = member.T @ apart**2 - counts * means**2
    variance = np.maximum(squares, 0) / np.maximum(counts - 1, 1)
    return np.asarray(np.sqrt(variance / np.maximum(counts, 1)), dtype=np.float64)
