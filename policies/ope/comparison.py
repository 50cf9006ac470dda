"""A policy against what was logged: every estimator with its interval, and what speaks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..records import Float64
from .estimators import (
    Estimate,
    Log,
    OffPolicyEstimator,
    Terms,
    effective_rows,
    estimators,
    standard_error,
    weights,
)


@dataclass(frozen=True)
class Comparison:
    """What a policy would have earned, by every estimator that the log allows.

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
    action_probs: Float64,
    predicted: Float64 | None = None,
    offered: Float64 | None = None,
    *,
    tau: float = 10.0,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The policy's value by every estimator that the log allows, with intervals.

    action_probs: [n, A], the policy's probabilities.
    predicted: [n, A], as ``reward_model.cross_fitted`` gives.

    offered: [n, A], the probabilities of the policy that logged; without them all gains are over
    the mean logged reward. With them those of "dr" are paired: what chance did to the logged
    rewards is corrected on both sides.
    tau: of switch-dr.

    Intervals are percentiles over resamples of the log's independent rows, for which predictions
    are not fitted again: what the others make of them is corrected by the rows, but "dm" has no
    interval, as nothing in the log shows how far its predictions are off.

    Raises PolicyError where the policy never takes a logged arm.
    """
    own = Terms(log.rewards, np.ones_like(log.rewards))
    used = {
        name: by for name, by in estimators(tau).items() if predicted is not None or not by.predicts
    }
    terms = {name: by.terms(log, action_probs, predicted) for name, by in used.items()}
    against = {name: _base(by, log, offered, predicted) or own for name, by in used.items()}
    names = list(terms)
    pairs = [own, *terms.values(), *(against[name] for name in names)]
    drawn = resampled(pairs, log.units, resamples, seed)  # [B, 1 + 2E]
    values, gains = {}, {}
    for at, name in enumerate(names, 1):
        parts, base = terms[name], against[name]
        error = standard_error(parts.residual - base.residual, log.units)
        gain = Estimate(parts.value - base.value, error)
        values[name] = _between(parts.estimate(log.units), drawn[:, at], confidence)
        gains[name] = _between(gain, drawn[:, at] - drawn[:, at + len(names)], confidence)
        if name == "dm":
            values[name] = Estimate(parts.value, math.nan)
            gains[name] = Estimate(gain.value, math.nan)
    heavy = weights(log, action_probs)
    return Comparison(
        _between(own.estimate(log.units), drawn[:, 0], confidence),
        values,
        gains,
        len(log.rewards),
        effective_rows(log, action_probs),
        float(heavy.max() / heavy.sum()),
        float(heavy[heavy > tau].sum() / heavy.sum()),
    )


def _base(
    by: OffPolicyEstimator, log: Log, offered: Float64 | None, predicted: Float64 | None
) -> Terms | None:
    """The terms of the logging policy where predictions correct them; None for the mean reward."""
    return by.terms(log, offered, predicted) if by.predicts and offered is not None else None


def on_policy(
    log: Log, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """The mean reward of the log: the value of the policy that wrote it."""
    own = Terms(log.rewards, np.ones_like(log.rewards))
    drawn = resampled([own], log.units, resamples, seed)
    return _between(own.estimate(log.units), drawn[:, 0], confidence)


def resampled(terms: list[Terms], units: NDArray[np.intp], resamples: int, seed: int) -> Float64:
    """[B, E]: every estimator's value on every resample of the independent units."""
    if resamples < 1:
        raise PolicyError(f"resamples must be at least 1, not {resamples}")
    columns = [np.bincount(units, part) for each in terms for part in (each.over, each.under)]
    sums, many = np.stack(columns, axis=1), len(columns[0])  # [G, 2E]
    rng = np.random.default_rng(seed)
    totals = np.stack(
        [
            np.bincount(rng.integers(many, size=many), minlength=many) @ sums
            for _ in range(resamples)
        ]
    )  # [B, 2E]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(totals[:, ::2] / totals[:, 1::2], dtype=np.float64)


def _between(found: Estimate, drawn: Float64, confidence: float) -> Estimate:
    """With the percentile interval, where there is more than one unit; a resample without any
    weight has no value and is left out."""
    seen = drawn[np.isfinite(drawn)]
    if not len(seen) or not math.isfinite(found.standard_error):
        return found
    tail = (1 - confidence) / 2
    low, high = np.quantile(seen, [tail, 1 - tail])
    return replace(found, low=float(low), high=float(high))
