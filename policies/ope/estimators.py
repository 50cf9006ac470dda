"""Off-policy estimators: what a policy would earn, from logs that another policy wrote.

They are for online logs, where only the chosen arm's reward is known. On a full table the exact
value (``evaluate.report``) needs none of them; it is the truth that they are tested against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..evaluation.evaluate import aligned
from ..records import Float64, Policy, RewardTable


@dataclass(frozen=True, eq=False)
class Log:
    """One choice per row.

    actions: [n] arm index.
    rewards: [n].
    propensities: [n], the probability with which the logging policy took that arm; all above 0.
    groups: [n], rows that share a number depend on each other, as the turns of a conversation do;
        None for each row its own.
    """

    actions: NDArray[np.intp]
    rewards: Float64
    propensities: Float64
    groups: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        if not len(self.actions) == len(self.rewards) == len(self.propensities) > 0:
            raise PolicyError("a log needs one action, reward and propensity per row, and a row")
        if self.groups is not None and len(self.groups) != len(self.actions):
            raise PolicyError(f"a log of {len(self.actions)} rows has {len(self.groups)} groups")
        if not ((self.propensities > 0) & (self.propensities <= 1)).all():
            raise PolicyError("a logged propensity is not in (0, 1]; the log cannot be reweighted")
        if not np.isfinite(self.rewards).all():
            raise PolicyError("a logged reward is not a finite number; drop or mend that row")

    @property
    def units(self) -> NDArray[np.intp]:
        """[n] which independent unit, from 0, each row belongs to."""
        if self.groups is None:
            return np.arange(len(self.actions))
        return np.unique(self.groups, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True)
class Estimate:
    """An estimated value and its standard error over rows, or over groups where the log has them.

    low, high: bootstrap interval, nan where none was asked for (see ``comparison.compare``).
    """

    value: float
    standard_error: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, eq=False)
class Terms:
    """What every estimator here is: a sum over rows divided by another one.

    over, under: [n].
    """

    over: Float64
    under: Float64

    @property
    def value(self) -> float:
        return float(self.over.sum() / self.under.sum())

    @property
    def residual(self) -> Float64:
        """[n], mean 0: how far each row moves the value, to first order (the delta method)."""
        return np.asarray((self.over - self.value * self.under) / self.under.mean())

    def estimate(self, units: NDArray[np.intp]) -> Estimate:
        """With its standard error over independent units [n]."""
        return Estimate(self.value, standard_error(self.residual, units))


def standard_error(residual: Float64, units: NDArray[np.intp]) -> float:
    """Of a mean whose rows deviate by residual [n]; nan for a single unit."""
    sums = np.bincount(units, residual)
    many = len(sums)
    if many < 2:
        return math.nan
    return float(np.sqrt(np.square(sums).sum() * many / (many - 1))) / len(residual)


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
    return ips_terms(log, target).estimate(log.units)


def snips(log: Log, target: Float64) -> Estimate:
    """Self-normalised IPS: sum(w r) / sum(w). Raises PolicyError where no logged arm is likely.

    Swaminathan, Joachims 2015. The standard error is the delta method's.
    """
    return snips_terms(log, target).estimate(log.units)


def dm(target: Float64, predicted: Float64) -> Estimate:
    """Direct method: the policy's value under predicted rewards. target, predicted: [n, A]."""
    return dm_terms(target, predicted).estimate(np.arange(len(target)))


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
    return switch_dr_terms(log, target, predicted, tau).estimate(log.units)


def ips_terms(log: Log, target: Float64) -> Terms:
    return _mean(weights(log, target) * log.rewards)


def snips_terms(log: Log, target: Float64) -> Terms:
    """Raises PolicyError where no logged arm is likely."""
    heavy = weights(log, target)
    if not heavy.sum() > 0:
        raise PolicyError(
            "the policy never takes an arm that was logged; log with more exploration"
        )
    return Terms(heavy * log.rewards, heavy)


def dm_terms(target: Float64, predicted: Float64) -> Terms:
    return _mean(_expected(target, predicted))


def switch_dr_terms(log: Log, target: Float64, predicted: Float64, tau: float) -> Terms:
    """Raises PolicyError for a tau below 0."""
    if math.isnan(tau) or tau < 0:
        raise PolicyError(f"tau must be 0 or more, not {tau}")
    heavy = weights(log, target)
    guess = predicted[np.arange(len(log.actions)), log.actions]
    correction = np.where(heavy <= tau, heavy * (log.rewards - guess), 0.0)
    return _mean(_expected(target, predicted) + correction)


def weights(log: Log, target: Float64) -> Float64:
    """[n]: how many times likelier the policy was to take the logged arm than the logger."""
    if target.ndim != 2 or len(target) != len(log.actions):
        raise PolicyError(
            f"the policy's probabilities have shape {target.shape}, the log {len(log.actions)} "
            "rows; give one row of probabilities per logged row"
        )
    chosen = target[np.arange(len(log.actions)), log.actions]
    return np.asarray(chosen / log.propensities, dtype=np.float64)


def effective_rows(log: Log, target: Float64) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2: so many rows of the policy's own would
    tell as much. 0 where no logged arm is likely."""
    heavy = weights(log, target)
    squares = float(np.square(heavy).sum())
    return float(heavy.sum()) ** 2 / squares if squares > 0 else 0.0


def _expected(target: Float64, predicted: Float64) -> Float64:
    if target.shape != predicted.shape:
        raise PolicyError(
            f"probabilities have shape {target.shape}, predictions {predicted.shape}; "
            "they must be equal"
        )
    return np.asarray((target * predicted).sum(axis=1), dtype=np.float64)


def _mean(terms: Float64) -> Terms:
    return Terms(terms, np.ones_like(terms))
