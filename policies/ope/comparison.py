"""A policy against what was logged: every estimator with its interval, and what speaks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..evaluation.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    group_sums,
    grouped_error,
    interval,
    ratio,
    resampled_sums,
)
from ..records import Float64
from .estimators import (
    Estimate,
    Log,
    OffPolicyEstimator,
    Terms,
    effective_rows,
    estimators,
    weights,
)


@dataclass(frozen=True)
class Comparison:
    """A policy's reward had it served, by every estimator that the log allows.

    logged: the mean reward of the log itself.
    values: estimator -> the policy's value: "ips", "snips", and "dm", "dr", "switch-dr" where
        rewards were predicted.
    gains: by how much that is more than what the policy that logged earned by the same estimator.
    rows: of the log.
    effective: its effective sample size for this policy.
    heaviest: the largest weight's share of all.
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
    predicted: [n, A], as ``reward_model.cross_fitted`` gives.
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
    against = {name: _base(by, log, offered, predicted) or own for name, by in used.items()}
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
    for at, (name, parts) in enumerate(terms.items()):
        base = against[name]
        error = grouped_error(parts.residual - base.residual, log.units)
        gain = Estimate(parts.value - base.value, float(error))
        values[name] = _between(parts.estimate(log.units), drawn[:, at], confidence)
        gains[name] = _between(gain, drawn[:, at] - bases[:, at], confidence)
        if name == "dm":
            values[name] = Estimate(parts.value, math.nan)
            gains[name] = Estimate(gain.value, math.nan)
    w = weights(log, action_probs)
    return Comparison(
        logged,
        values,
        gains,
        len(log.rewards),
        effective_rows(log, action_probs),
        float(w.max() / w.sum()),
        float(w[w > tau].sum() / w.sum()),
    )


def _base(
    by: OffPolicyEstimator, log: Log, offered: Float64 | None, predicted: Float64 | None
) -> Terms | None:
    """The terms of the logging policy where predictions correct them; None for the mean reward."""
    return by.terms(log, offered, predicted) if by.predicts and offered is not None else None


def on_policy(
    log: Log, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """The mean reward of the log: the value of the policy that wrote it."""
    own = _logged(log)
    drawn = resampled([own], log.units, resamples, seed)
    return _between(own.estimate(log.units), drawn[:, 0], confidence)


def _logged(log: Log) -> Terms:
    return Terms(log.rewards, np.ones_like(log.rewards))


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
