"""Whether a policy's own numbers come true on queries that it was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..records import Float64, Policy, RewardTable
from .bootstrap import grouped_error
from .units import units_of

BINS = 10
LEAST = 8  # groups of queries for each bin


@dataclass(frozen=True)
class Bin:
    """Rows for which the policy predicted about the same.

    predicted, observed: means over them.
    low, high: 95 % interval of `observed` over groups of queries: Student's for rewards, Wilson's
        for shares.
    """

    predicted: float
    observed: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class Calibration:
    """Predicted and observed values of a policy's chosen arms.

    of: "reward", predicted and earned; or "chance", the arm's probability, and the share of rows on
        which it was the best arm.
    bins: of about as many rows each, by the prediction.
    error: the mean distance of the two, over bins, weighed by their rows.
    """

    of: str
    bins: list[Bin]
    error: float


def scores_of(policy: Policy, table: RewardTable) -> Float64:
    """[n, A], the policy's scores in the table's arm order; nan for arms that it does not know."""
    scores = np.full(table.rewards.shape, np.nan)
    places = [table.arms.index(arm) for arm in policy.arms]
    scores[:, places] = policy.scores(table.read_by(policy.origin))
    return scores


def calibration(table: RewardTable, probs: Float64, scores: Float64) -> Calibration | None:
    """None if the prediction is the same for every row, and if there are too few.

    probs, scores: [n, A], what the policy gave on the table's rows; a row of zeros in probs is left
        out, as is one whose arm failed.
    """
    taken, rows = probs.argmax(axis=1), np.arange(len(table))
    of = "chance" if np.allclose(np.nan_to_num(scores), probs) else "reward"
    predicted, earned = scores[rows, taken], table.rewards[rows, taken]
    kept = (probs.sum(axis=1) > 0) & ~np.isnan(earned) & ~np.isnan(predicted)
    groups = units_of(table, kept).group_of_row
    many = len(np.unique(groups))
    if many < 2 * LEAST or np.ptp(predicted[kept]) < 1e-9:
        return None
    best = np.nanmax(table.rewards[kept], axis=1)
    seen = earned[kept] if of == "reward" else (earned[kept] >= best).astype(np.float64)
    predicted = predicted[kept]
    count = min(BINS, many // LEAST)
    parts = np.array_split(np.argsort(predicted, kind="stable"), count)
    interval = _of_mean if of == "reward" else _of_share
    bins = [
        Bin(
            float(predicted[part].mean()),
            float(seen[part].mean()),
            *interval(seen[part], groups[part]),
            len(part),
        )
        for part in parts
    ]
    error = sum(one.rows * abs(one.predicted - one.observed) for one in bins) / len(predicted)
    return Calibration(of, bins, float(error))


def _of_mean(values: Float64, groups: NDArray[np.intp]) -> tuple[float, float]:
    from scipy.special import stdtrit

    mean, index = float(values.mean()), np.unique(groups, return_inverse=True)[1]
    many = int(index.max()) + 1
    if many < 2:
        return -math.inf, math.inf
    around = float(stdtrit(many - 1, 0.975)) * float(grouped_error(values - mean, index))
    return mean - around, mean + around


def _of_share(hits: Float64, groups: NDArray[np.intp]) -> tuple[float, float]:
    """As if each group had been seen once."""
    from scipy.special import ndtri

    z, n, share = float(ndtri(0.975)), len(np.unique(groups)), float(hits.mean())
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    around = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = middle - around, middle + around
    return max(low, 0.0) if share > 0 else 0.0, min(high, 1.0) if share < 1 else 1.0
