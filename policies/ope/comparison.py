"""A policy against what was logged: every estimator with its interval, and what speaks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..base import moments
from ..errors import PolicyError
from ..evaluation.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    group_sums,
    grouped_error,
    interval,
    ratio,
    resampled_sums,
)
from ..learners.regression import ridge_weights
from ..records import Float32, Float64
from .estimators import (
    Estimate,
    Log,
    Terms,
    effective_rows,
    estimators,
    unit_weights,
    weights,
)

NEARLY_NONE = 0.001  # of a policy's choices
LEAST_ROWS = 10  # of an arm, independent ones; with fewer its mean is the prediction


@dataclass(frozen=True)
class Comparison:
    """A policy's reward had it served, by every estimator that the log allows.

    logged: the mean reward of the log itself.
    values: estimator -> the policy's value: "ips", "snips", and "dm", "dr", "switch-dr" where
        rewards were predicted; without "ips" where the policy takes arms that have no rows, as
        these would count as 0.
    gains: by how much that is more than what the policy that logged earned by the same estimator;
        nan where the reward of an arm that it took is never known.
    rows: of the log.
    effective: its effective sample size for this policy, in independent rows or groups.
    heaviest: the share of all weight that the heaviest of these has.
    cut: the share of all weight above tau. Of these rows switch-dr takes the prediction alone, and
        its interval, as that of "dm" would, knows nothing of the prediction's error.
    """

    logged: Estimate
    values: dict[str, Estimate]
    gains: dict[str, Estimate]
    rows: int
    effective: float
    heaviest: float
    cut: float


def compare(
    log: Log,
    action_probs: Mapping[str, Float64],
    predicted: Float64 | None = None,
    offered: Float64 | None = None,
    *,
    tau: float = 10.0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> dict[str, Comparison]:
    """Every policy's value by every estimator that the log allows, on the same resamples.

    action_probs: name -> [n, A], the policy's probabilities.
    predicted: [n, A], as ``cross_fitted`` gives.
    offered: [n, A], the probabilities of the policy that logged; without them all gains are over
        the mean logged reward. With them those of "dr" are paired: what chance did to the logged
        rewards is corrected on both sides.
    tau: of switch-dr.

    Intervals are percentiles over resamples of the log's independent rows, for which predictions
    are not fitted again: what the others make of them is corrected by the rows, but "dm" has no
    interval, as nothing in the log shows how far its predictions are off.

    Raises PolicyError where a policy never takes a logged arm.
    """
    used = {
        name: by for name, by in estimators(tau).items() if predicted is not None or not by.predicts
    }
    if not action_probs:
        return {}
    own = _logged(log)
    against = dict.fromkeys(used, own)
    if offered is not None:  # predictions correct what the logging policy earned, too
        corrected = {name: by for name, by in used.items() if by.predicts}
        against |= {n: by.terms(log, offered, predicted) for n, by in corrected.items()}
    terms = {
        policy: {name: by.terms(log, probs, predicted) for name, by in used.items()}
        for policy, probs in action_probs.items()
    }
    every = [own, *against.values(), *(each for of in terms.values() for each in of.values())]
    drawn = resampled(every, log.units, resamples, seed)  # [B, 1 + E + P E]
    bases, size = drawn[:, 1 : 1 + len(used)], len(used)
    logged = _between(own.estimate(log.units), drawn[:, 0], confidence)
    return {
        policy: _comparison(
            log, action_probs[policy], logged, terms[policy], against,
            drawn[:, 1 + (i + 1) * size : 1 + (i + 2) * size], bases, tau, confidence,
        )
        for i, policy in enumerate(terms)
    }  # fmt: skip


def _comparison(
    log: Log,
    action_probs: Float64,
    logged: Estimate,
    terms: Mapping[str, Terms],
    against: Mapping[str, Terms],
    drawn: Float64,
    bases: Float64,
    tau: float,
    confidence: float,
) -> Comparison:
    """drawn, bases: [B, E], resampled values of terms and against."""
    values, gains = {}, {}
    known = np.bincount(log.actions, minlength=action_probs.shape[1]) > 0
    for at, (name, parts) in enumerate(terms.items()):
        if name == "ips" and action_probs[:, ~known].sum(axis=1).mean() > NEARLY_NONE:
            continue
        base = against[name]
        error = grouped_error(parts.residual - base.residual, log.units)
        gain = Estimate(parts.value - base.value, float(error))
        values[name] = _between(parts.estimate(log.units), drawn[:, at], confidence)
        gains[name] = _between(gain, drawn[:, at] - bases[:, at], confidence)
        if name == "dm":
            values[name] = Estimate(parts.value, math.nan)
            gains[name] = Estimate(gain.value, math.nan)
        if log.known is not None:
            gains[name] = Estimate(math.nan, math.nan)
    w = weights(log, action_probs)
    return Comparison(
        logged,
        values,
        gains,
        len(log.rewards),
        effective_rows(log, action_probs),
        float(unit_weights(log, action_probs).max() / w.sum()),
        float(w[w > tau].sum() / w.sum()),
    )


def on_policy(log: Log, *, seed: int = 0) -> Estimate:
    """The mean reward of the log: the value of the policy that wrote it."""
    own = _logged(log)
    drawn = resampled([own], log.units, RESAMPLES, seed)
    return _between(own.estimate(log.units), drawn[:, 0], CONFIDENCE)


def _logged(log: Log) -> Terms:
    return Terms(log.rewards * log.counts, log.counts)


def resampled(terms: list[Terms], units: NDArray[np.intp], resamples: int, seed: int) -> Float64:
    """[B, E]: every estimator's value on every resample of the independent units; nan on one
    without any weight."""
    over, under = (
        group_sums(np.stack(columns, axis=1), units)  # [G, E]
        for columns in ([each.over for each in terms], [each.under for each in terms])
    )
    totals = resampled_sums(np.concatenate([over, under], axis=1), seed, resamples)  # [B, 2E]
    return np.stack([ratio(totals[:, i], totals[:, i + len(terms)]) for i in range(len(terms))], 1)


def _between(found: Estimate, drawn: Float64, confidence: float) -> Estimate:
    """Add the percentile interval, where there is more than one unit."""
    if not math.isfinite(found.standard_error):
        return found
    low, high = interval(drawn, confidence)
    return replace(found, low=low, high=high)


def cross_fitted(inputs: Float32, log: Log, arms: int, *, folds: int = 2, seed: int = 0) -> Float64:
    """[n, A] rewards predicted from a log, each row by a model that has not seen it:
    for each arm a ridge regression on the rows that took it.

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
