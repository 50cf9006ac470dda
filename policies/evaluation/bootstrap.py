"""The bootstrap over independent units (queries, groups of rows), and means over groups of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..records import Float64

RESAMPLES = 4000  # Bonferroni's quantiles of a few candidates need this many
CONFIDENCE = 0.95
BLOCK = 1 << 22  # counts held at a time where only sums are asked for


def resample(units: int, seed: int, resamples: int = RESAMPLES) -> Float64:
    """[B, units]: how often each unit is drawn in each of B resamples with replacement.

    One seed gives the same resamples, so that figures of the same units can be compared pairwise.
    Raises PolicyError for fewer than one resample.
    """
    _check(resamples)
    rng = np.random.default_rng(seed)
    return rng.multinomial(units, np.full(units, 1 / units), size=resamples).astype(np.float64)


def resampled_sums(columns: Float64, seed: int, resamples: int = RESAMPLES) -> Float64:
    """[B, k]: `resample` times columns [units, k], in blocks that bound the memory."""
    _check(resamples)
    rng, units = np.random.default_rng(seed), len(columns)
    even, rows = np.full(units, 1 / units), max(1, BLOCK // units)
    sums = [
        rng.multinomial(units, even, size=min(rows, resamples - at)) @ columns
        for at in range(0, resamples, rows)
    ]
    return np.concatenate(sums)


def ratio(over: Float64, under: Float64) -> Float64:
    """[B] over / under, nan where under is not above 0."""
    found: Float64 = np.divide(over, under, out=np.full(len(over), np.nan), where=under > 0)
    return found


def interval(drawn: Float64, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval of resampled figures [B]; only finite ones count.

    (nan, nan) where none is finite.
    """
    finite = drawn[np.isfinite(drawn)]
    if not len(finite):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return float(low), float(high)


def ratio_interval(
    over: NDArray[Any], under: NDArray[Any], index: NDArray[np.intp], counts: Float64
) -> tuple[float, float]:
    """Percentile interval of sum(over) / sum(under) over resamples of groups; (nan, nan) where
    fewer than two groups count.

    over, under: [n]. index: [n], each row's group. counts: [B, G], as `resample` gives.
    """
    above, below = group_sums(over, index), group_sums(under, index)
    if (below > 0).sum() < 2:
        return math.nan, math.nan
    return interval(ratio(counts @ above, counts @ below))


def group_index(groups: Sequence[object]) -> NDArray[np.intp]:
    """[n] each row's group as a number from 0, in the order in which the groups first come."""
    place = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return np.array([place[group] for group in groups], dtype=np.intp)


def group_sums(values: NDArray[Any], index: NDArray[np.intp]) -> Float64:
    """[n] to [G], or [n, k] to [G, k]: sums over the rows of each group. index: [n]."""
    sums = np.zeros((int(index.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(sums, index, values)
    return sums


def group_means(
    values: NDArray[Any], index: NDArray[np.intp], weights: Float64 | None = None
) -> Float64:
    """Average the rows of each group, in the shapes of `group_sums`. weights: [n], None for all
    alike."""
    each = np.ones(len(index)) if weights is None else weights
    each = each.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(group_sums(values * each, index) / group_sums(each, index))


def grouped_error(residual: NDArray[Any], index: NDArray[np.intp]) -> Float64:
    """The standard error of a mean over rows of which groups alone are independent.

    residual: [n, ...] of mean 0, how far each row is from it. index: [n], each row's group.
    Returns [...]; nan for a single group.
    """
    sums = group_sums(residual, index)
    many = len(sums)
    if many < 2:
        return np.full(residual.shape[1:], np.nan)
    return np.asarray(np.sqrt(np.square(sums).sum(axis=0) * many / (many - 1)) / len(residual))


def _check(resamples: int) -> None:
    if resamples < 1:
        raise PolicyError(f"resamples must be at least 1, not {resamples}")
