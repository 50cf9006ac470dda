"""Rewards of all arms predicted from a log, each row by a model that has not seen it."""

from __future__ import annotations

import numpy as np

from ..base import moments
from ..errors import PolicyError
from ..learners.regression import ridge_weights
from ..records import Float32, Float64
from .estimators import Log

LEAST_ROWS = 10  # of an arm, independent ones; with fewer its mean is the prediction


def cross_fitted(inputs: Float32, log: Log, arms: int, *, folds: int = 2, seed: int = 0) -> Float64:
    """[n, A] predicted rewards: for each arm a ridge regression on the rows that took it.

    inputs: [n, w], what is known of each row; w may be 0.
    folds: parts of the log; each is predicted from the others (Chernozhukov et al. 2018). A group
        is never split.

    A prediction never leaves the range of the rewards it was fitted to. An arm that was taken less
    than ``LEAST_ROWS`` times is predicted by its mean, drawn to the mean of all by one row of that
    value. Raises PolicyError where there are fewer independent rows than folds.
    """
    units = log.units
    many = int(units.max()) + 1
    if many < folds:
        raise PolicyError(
            f"predicting each of {folds} parts of a log from the others needs {folds} independent "
            f"rows; it has {many}"
        )
    fold = (np.random.default_rng(seed).permutation(many) % folds)[units]  # [n]
    predicted = np.empty((len(log.actions), arms))
    for part in range(folds):
        seen, out = fold != part, fold == part
        mean, std = moments(inputs[seen], True)
        x = ((inputs - mean) / std).astype(np.float64)  # [n, w]
        for arm in range(arms):
            took = seen & (log.actions == arm)
            predicted[out, arm] = _predict(
                x[took], log.rewards[took], units[took].tolist(), x[out], log.rewards[seen]
            )
    return predicted


def _predict(x: Float64, y: Float64, groups: list[int], asked: Float64, every: Float64) -> Float64:
    """[len(asked)]. x, y, groups: of the arm's rows. every: the rewards of all arms."""
    if len(set(groups)) < LEAST_ROWS or not x.shape[1]:
        return np.full(len(asked), (y.sum() + every.mean()) / (len(y) + 1))
    center = x.mean(axis=0)
    slope = ridge_weights(x - center, (y - y.mean())[:, None], None, groups)[0][0]  # [w]
    return np.asarray(np.clip(y.mean() + (asked - center) @ slope, every.min(), every.max()))
