"""Logistic regression on the name of the best arm (scikit-learn), kept as one softmax layer."""

from __future__ import annotations

import numpy as np

from ..base import moments, origin_of
from ..errors import PolicyError
from ..records import Fitted, RewardTable
from .network import Layer, NetworkPolicy


def fit_logistic(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    c: float = 0.01,
    weighted: bool = False,
    standardise: bool = True,
    max_iter: int = 1000,
) -> Fitted:
    """Classify queries by their best arm.

    c: inverse strength of the L2 penalty; small, because there are often fewer queries than inputs.
    weighted: a query counts by what the best arm gains over the mean arm, so that near-ties do not
        outvote clear cases.

    An arm that is best nowhere gets probability 0.

    Raises PolicyError on an option out of range.
    """
    if not c > 0 or max_iter < 1:
        raise PolicyError("c must be above 0 and max_iter at least 1")
    seen = table.filled()
    mean, std = moments(seen.inputs, standardise, len(seen.feature_names))
    x = ((seen.inputs - mean) / std).astype(np.float64)
    best = table.best_arms()  # [n]
    classes = np.unique(best)
    weight = np.zeros((len(table.arms), table.width), dtype=np.float32)
    bias = np.full(len(table.arms), -np.inf, dtype=np.float32)
    if len(classes) == 1:
        bias[classes] = 0.0
    else:
        from sklearn.linear_model import LogisticRegression

        counts = np.ones(len(seen)) if seen.weights is None else seen.weights
        gain = seen.rewards.max(axis=1) - seen.rewards.mean(axis=1)
        if weighted and gain.mean() > 0:
            counts = counts * gain / gain.mean()
        model = LogisticRegression(C=c, max_iter=max_iter).fit(x, best, sample_weight=counts)
        two = len(classes) == 2  # scikit-learn then keeps one row: the second class's log-odds
        zero = np.zeros_like(model.coef_)
        weight[classes] = np.vstack([zero, model.coef_]) if two else model.coef_
        bias[classes] = np.append(0.0, model.intercept_) if two else model.intercept_
    options = {"c": c, "weighted": weighted, "standardise": standardise, "max_iter": max_iter}
    origin = origin_of("logistic", table, seed, options)
    return Fitted(NetworkPolicy(origin, [Layer(weight, bias)], mean, std, "softmax"), [])
