"""Bounds of a mean gain, by Student's t and by the bootstrap, the wider of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..records import Float64
from .bootstrap import CONFIDENCE


@dataclass(frozen=True)
class Gain:
    """A mean gain over queries, each counted once.

    mean: in units of the reward.
    low, high: one-sided bounds, each of which holds with the confidence asked for.
    queries: how many there were.
    needed: about how many would put the lower bound above 0 if mean and spread stayed as they are;
        None where the mean is not above 0.
    """

    mean: float
    low: float
    high: float
    queries: int
    needed: int | None

    @property
    def above_zero(self) -> bool:
        """Whether it is above 0 beyond doubt, at the confidence asked for."""
        return self.low > 0

    def as_json(self) -> dict[str, float | int | None]:
        """JSON-ready: a bound that says nothing is null."""
        return {
            "mean": self.mean,
            "low": self.low if math.isfinite(self.low) else None,
            "high": self.high if math.isfinite(self.high) else None,
            "queries": self.queries,
            "needed": self.needed,
        }


def gain_of(gains: Float64, counts: Float64, tests: int = 1) -> Gain:
    """The mean of paired gains [n] with its bounds.

    counts: [B, n] of `bootstrap.resample`, so that several gains share the resamples.
    tests: how many gains are looked at together; each bound then holds at 1 - 0.05 / tests
        (Bonferroni), so that all of them hold at once with 95 %.

    The bound by Student's t trusts the mean to be normal, the bootstrap's percentiles trust the
    sample to show its tails; the lower of the two lower bounds and the higher of the two upper ones
    are given.
    """
    from scipy.stats import norm, t

    n, level = len(gains), 1 - (1 - CONFIDENCE) / tests
    mean, spread = float(gains.mean()), float(gains.std(ddof=1)) if n > 1 else math.inf
    if n < 2:
        return Gain(mean, -math.inf, math.inf, n, None)
    margin = float(t.ppf(level, n - 1)) * spread / math.sqrt(n)
    drawn = counts @ gains / n
    low, high = np.quantile(drawn, [1 - level, level])
    needed = None
    if mean > 0:
        needed = max(2, math.ceil((float(norm.ppf(level)) * spread / mean) ** 2))
    return Gain(mean, min(mean - margin, float(low)), max(mean + margin, float(high)), n, needed)
