"""Bounds of a mean gain over queries, that hold where gains are skewed, tied or rarely very bad."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..records import Float64
from .bootstrap import CONFIDENCE, group_sums, resample
from .units import Units

RARE = (
    0.05  # of the groups: a loss on so many is to be seen with CONFIDENCE before a bound is given
)
MIN_BOUNDED_GROUPS = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - RARE))  # groups, 59


@dataclass(frozen=True)
class Gain:
    """A mean gain over queries, each counted once.

    mean: in units of the reward.
    low, high: one-sided bounds, each of which holds with the confidence asked for; infinite where
        there are too few queries for one.
    queries: how many there were.
    groups: how many independent groups they were in; None for each query its own.
    needed: about how many queries would put the lower bound above 0 if mean and spread stayed as
        they are; None where the mean is not above 0, or where no number would, because the costs
        behind the reward are known too loosely.
    costs_error: by how much those costs may move the mean, at the bounds' own confidence; the
        bounds include it. None where costs play no part, or were measured once.
    """

    mean: float
    low: float
    high: float
    queries: int
    needed: int | None
    groups: int | None = None
    costs_error: float | None = None

    @property
    def above_zero(self) -> bool:
        """Tell whether it is above 0 beyond doubt, at the confidence asked for."""
        return self.low > 0

    def as_json(self) -> dict[str, float | int | None]:
        """JSON-ready: a bound that says nothing is null."""
        return {
            "mean": self.mean,
            "low": self.low if math.isfinite(self.low) else None,
            "high": self.high if math.isfinite(self.high) else None,
            "queries": self.queries,
            "groups": self.queries if self.groups is None else self.groups,
            "needed": self.needed,
            "costs_error": self.costs_error,
        }


def resamples(units: Units, seed: int) -> Float64:
    """[B, G + 1], for `gain_of`: of the groups, and of one more."""
    return resample(units.groups + 1, seed)


def gain_of(
    gains: Float64, units: Units, counts: Float64, tests: int = 1, by_costs: Float64 | None = None
) -> Gain:
    """The mean of the queries' paired gains [Q] with its bounds, for which groups alone are
    independent.

    counts: of `resamples`, so that several gains share them.
    tests: how many gains are looked at together; each bound then holds at 1 - 0.05 / tests
        (Bonferroni), so that all of them hold at once with 95 %.
    by_costs: [R], the mean gain by each measurement of the costs; the bounds then include what
        these differ by (`costs_margin`).

    Fewer than MIN_BOUNDED_GROUPS have no bound. Of more, a lower bound is that of the groups and
    one more as bad as the worst of them, an upper one that with one more as good as the best: what
    is rare and large weighs as if it were seen once more. Student's t trusts the mean to be normal,
    the bootstrap's percentiles trust the sample to show its tails; the lower of the two lower
    bounds and the higher of the two upper ones are given. `benchmarks/error_rates.py` measures how
    often they are wrong.

    The mean over queries is a ratio of sums over groups. A group moves it, to first order, by (the
    sum of its gains - mean * its queries) / (queries a group), the pseudo-values that are bounded.
    """
    from scipy.special import ndtri

    n, level = units.groups, 1 - (1 - CONFIDENCE) / tests
    mean, groups = float(gains.mean()), None if n == units.queries else n
    if n < 2:
        return Gain(mean, -math.inf, math.inf, units.queries, None, groups)
    sizes = np.bincount(units.group_of_query)  # [G]
    moved = group_sums(gains - mean, units.group_of_query) / sizes.mean()  # mean 0
    needed = None
    if mean > 0:
        ratio = float(ndtri(level) * moved.std(ddof=1)) / mean
        needed = math.ceil(max(ratio**2, MIN_BOUNDED_GROUPS) * float(sizes.mean()))
    low, high = -math.inf, math.inf
    if n >= MIN_BOUNDED_GROUPS:
        sums, more = counts[:, :n] @ moved, counts[:, n]  # [B] each
        worst, best = moved.min(), moved.max()
        low = mean + _lower(np.append(moved, worst), sums + more * worst, level)
        high = mean - _lower(-np.append(moved, best), -(sums + more * best), level)
    made = Gain(mean, low, high, units.queries, needed, groups)
    return made if by_costs is None else _with_costs(made, by_costs, level)


def costs_margin(mean: float, by_costs: Float64, level: float) -> float:
    """Bound how far the error of the costs may move a mean, with a one-sided confidence.

    by_costs: [R], what the mean is by each of their measurements; 0 for fewer than two.

    All queries share the costs, so that their error does not average out over queries. It is that
    of a mean of R measurements, their scatter taken about the mean in use, by Student's t with
    R - 1 degrees of freedom. The costs in use are medians of the measurements: of five normal ones
    a bound of 95% then holds in 94.3% of cases, one of 99% in 99.0%.
    """
    from scipy.special import stdtrit

    measured = len(by_costs)
    if measured < 2:
        return 0.0
    variance = float(((by_costs - mean) ** 2).sum()) / (measured - 1)
    return float(stdtrit(measured - 1, level)) * math.sqrt(variance / measured)


def _with_costs(gain: Gain, by_costs: Float64, level: float) -> Gain:
    """Bounds that include the error of the costs, which has nothing to do with which queries
    came."""
    margin = costs_margin(gain.mean, by_costs, level)
    needed = gain.needed
    if needed is not None and margin:
        left = 1 - (margin / gain.mean) ** 2  # of the squared mean, for the queries' own margin
        needed = math.ceil(needed / left) if left > 0 else None
    low, high = widened(gain.mean, (gain.low, gain.high), margin)
    return replace(gain, low=low, high=high, needed=needed, costs_error=margin)


def widened(mean: float, bounds: tuple[float, float], margin: float) -> tuple[float, float]:
    """Bounds of a mean with another, independent error: the two are added in squares."""
    low, high = bounds
    return mean - math.hypot(mean - low, margin), mean + math.hypot(high - mean, margin)


def _lower(values: Float64, sums: Float64, level: float) -> float:
    """The lower of two lower bounds of the mean of independent values [n]. sums: [B], of the
    values as they were resampled."""
    from scipy.special import stdtrit

    n, mean = len(values), float(values.mean())
    margin = float(stdtrit(n - 1, level)) * float(values.std(ddof=1)) / math.sqrt(n)
    return min(mean - margin, float(np.quantile(sums / n, 1 - level)))
