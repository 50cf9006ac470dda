"""Off-policy estimators: what a policy would earn, from logs that another policy wrote.

They are for online logs, where only the chosen arm's reward is known. On a full table the exact
value (``evaluate.report``) needs none of them; it is the truth that they are tested against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import PolicyError
from .evaluate import aligned
from .records import Float64, Policy, RewardTable


@dataclass(frozen=True, eq=False)
class Log:
    """One choice per row.

    actions: [n] arm index.
    rewards: [n].
    propensities: [n], the probability with which the logging policy took that arm; all above 0.
    """

    actions: NDArray[np.intp]
    rewards: Float64
    propensities: Float64

    def __post_init__(self) -> None:
        if not len(self.actions) == len(self.rewards) == len(self.propensities) > 0:
            raise PolicyError("a log needs one action, reward and propensity per row, and a row")
        if not ((self.propensities > 0) & (self.propensities <= 1)).all():
            raise PolicyError("a logged propensity is not in (0, 1]; the log cannot be reweighted")
        if not np.isfinite(self.rewards).all():
            raise PolicyError("a logged reward is not a finite number; drop or mend that row")


@dataclass(frozen=True)
class Estimate:
    """An estimated value and its standard error over rows."""

    value: float
    standard_error: float


def simulate(policy: Policy, table: RewardTable, rng: np.random.Generator) -> Log:
    """What the policy would have logged on the table: one sampled arm a query.

    A draw of a failed arm has no reward and is left out, as in a real log.
    """
    probs = aligned(policy, table)
    draws = rng.random((len(table), 1))
    actions = np.minimum((probs.cumsum(axis=1) < draws).sum(axis=1), probs.shape[1] - 1)
    rows = np.arange(len(table))
    rewards = table.rewards[rows, actions]
    kept = ~np.isnan(rewards)
    return Log(actions[kept], rewards[kept], probs[rows, actions][kept])


def ips(log: Log, target: Float64) -> Estimate:
    """Inverse propensity scoring: mean of w r with w = pi(a|x) / propensity. target: [n, A]."""
    return _estimate(_weights(log, target) * log.rewards)


def snips(log: Log, target: Float64) -> Estimate:
    """Self-normalised IPS: sum(w r) / sum(w). Raises PolicyError where no logged arm is likely.

    The standard error is the delta method's.
    """
    weights = _weights(log, target)
    if not weights.sum() > 0:
        raise PolicyError(
            "the policy never takes an arm that was logged; log with more exploration"
        )
    mean = float((weights * log.rewards).sum() / weights.sum())
    spread = weights * (log.rewards - mean) / weights.mean()
    return Estimate(mean, float(np.sqrt(np.square(spread).mean() / len(spread))))


def dm(target: Float64, predicted: Float64) -> Estimate:
    """Direct method: the policy's value under predicted rewards. target, predicted: [n, A]."""
    return _estimate(_expected(target, predicted))


def dr(log: Log, target: Float64, predicted: Float64) -> Estimate:
    """Doubly robust: the direct method plus IPS on what the prediction missed.

    Dudik, Langford, Li 2011. Unbiased where the propensities are right or the predictions are.
    """
    return switch_dr(log, target, predicted, math.inf)


def switch_dr(log: Log, target: Float64, predicted: Float64, tau: float) -> Estimate:
    """Doubly robust where the weight is at most tau, the direct method elsewhere.

    Wang, Agarwal, Dudik 2017: trades a little bias for the variance of rare, heavy rows.
    tau=inf is DR, tau=0 is DM.
    """
    if math.isnan(tau) or tau < 0:
        raise PolicyError(f"tau must be 0 or more, not {tau}")
    weights = _weights(log, target)
    guess = predicted[np.arange(len(log.actions)), log.actions]
    correction = np.where(weights <= tau, weights * (log.rewards - guess), 0.0)
    return _estimate(_expected(target, predicted) + correction)


def _weights(log: Log, target: Float64) -> Float64:
    if target.ndim != 2 or len(target) != len(log.actions):
        raise PolicyError(
            f"the policy's probabilities have shape {target.shape}, the log {len(log.actions)} "
            "rows; give one row of probabilities per logged row"
        )
    chosen = target[np.arange(len(log.actions)), log.actions]
    return np.asarray(chosen / log.propensities, dtype=np.float64)


def _expected(target: Float64, predicted: Float64) -> Float64:
    if target.shape != predicted.shape:
        raise PolicyError(
            f"probabilities have shape {target.shape}, predictions {predicted.shape}; "
            "they must be equal"
        )
    return np.asarray((target * predicted).sum(axis=1), dtype=np.float64)


def _estimate(terms: Float64) -> Estimate:
    error = float(terms.std(ddof=1) / math.sqrt(len(terms))) if len(terms) > 1 else math.nan
    return Estimate(float(terms.mean()), error)
