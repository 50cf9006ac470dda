"""Off-policy estimators: what a policy would earn, from logs that another policy wrote.

They are for online logs, where only the chosen arm's reward is known. On a full table the exact
value (``evaluate.report``) needs none of them; it is the truth that they are tested against.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..evaluation.bootstrap import grouped_error
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
    shares: [n], of the rows that took the same arm the share whose reward is known, where others
        were left out; None where all are known.
    known: [n], the chance that each request had of an arm of which any reward is known, where rows
        of other arms were left out; None where there are none.
    """

    actions: NDArray[np.intp]
    rewards: Float64
    propensities: Float64
    groups: NDArray[np.intp] | None = None
    shares: Float64 | None = None
    known: Float64 | None = None

    def __post_init__(self) -> None:
        if not len(self.actions) == len(self.rewards) == len(self.propensities) > 0:
            raise PolicyError("a log needs one action, reward and propensity per row, and a row")
        if self.groups is not None and len(self.groups) != len(self.actions):
            raise PolicyError(f"a log of {len(self.actions)} rows has {len(self.groups)} groups")
        if not ((self.propensities > 0) & (self.propensities <= 1)).all():
            raise PolicyError("a logged propensity is not in (0, 1]; the log cannot be reweighted")
        if not np.isfinite(self.rewards).all():
            raise PolicyError("a logged reward is not a finite number; drop or fix that row")

    @property
    def counts(self) -> Float64:
        """[n] for how many rows of its arm each stands."""
        return np.ones(len(self.actions)) if self.shares is None else 1 / self.shares

    @property
    def requests(self) -> Float64:
        """[n] for how many requests each stands, those that took other arms among them."""
        return self.counts if self.known is None else self.counts / self.known

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
    """An estimator as a ratio of sums over rows, sum(over) / sum(under).

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
        """Compute the value with its standard error over independent units [n]."""
        return Estimate(self.value, float(grouped_error(self.residual, units)))


def simulate(policy: Policy, table: RewardTable, rng: np.random.Generator) -> Log:
    """Log as the policy would have on the table: one sampled arm a query.

    An arm that fails where it is drawn earns the worst reward of the others, as in a real log.
    """
    probs = aligned(policy, table)
    draws = rng.random((len(table), 1))
    actions = np.minimum((probs.cumsum(axis=1) < draws).sum(axis=1), probs.shape[1] - 1)
    rows = np.arange(len(table))
    rewards = table.rewards[rows, actions]
    if np.isnan(rewards).all():
        raise PolicyError("every arm that was drawn failed; there is nothing to estimate from")
    return Log(actions, np.nan_to_num(rewards, nan=np.nanmin(rewards)), probs[rows, actions])


class OffPolicyEstimator(ABC):
    """An estimator of the value of a policy pi from n logged rows (x_i, a_i, r_i, p_i).

    p_i is the propensity with which the logging policy took a_i, and w_i = pi(a_i | x_i) / p_i the
    importance weight. Where rewards of some rows are not known, the others of the arm stand for
    them, in w_i and in the mean, and where those of an arm never are, rows of other arms do in the
    mean, by the chance that they had of being there. q(x, a) is a predicted reward, as
    ``comparison.cross_fitted`` gives it.
    """

    predicts: ClassVar[bool] = False
    """Tell whether it reads predicted rewards."""

    @abstractmethod
    def terms(self, log: Log, action_probs: Float64, predicted: Float64 | None = None) -> Terms:
        """action_probs: [n, A], pi(a | x_i). predicted: [n, A], q(x_i, a).

        Raises PolicyError for shapes that do not fit the log.
        """

    def estimate(
        self, log: Log, action_probs: Float64, predicted: Float64 | None = None
    ) -> Estimate:
        """The value, with its standard error over the log's independent rows."""
        return self.terms(log, action_probs, predicted).estimate(log.units)


class InverseProbabilityWeighting(OffPolicyEstimator):
    """V = 1/n sum_i w_i r_i. Unbiased where every arm that pi takes could have been logged.

    Horvitz, Thompson 1952; Strehl et al. 2010, "Learning from Logged Implicit Exploration Data".
    """

    def terms(self, log: Log, action_probs: Float64, predicted: Float64 | None = None) -> Terms:
        return Terms(weights(log, action_probs) * log.rewards, log.requests)


class SelfNormalizedInverseProbabilityWeighting(OffPolicyEstimator):
    """V = sum_i w_i r_i / sum_i w_i. Slightly biased, with less variance.

    Swaminathan, Joachims 2015, "The Self-Normalized Estimator for Counterfactual Learning". The
    standard error is the delta method's.
    """

    def terms(self, log: Log, action_probs: Float64, predicted: Float64 | None = None) -> Terms:
        """Raises PolicyError where pi never takes a logged arm."""
        w = weights(log, action_probs)
        if not w.sum() > 0:
            raise PolicyError(
                "the policy never takes an arm that was logged; log with more exploration"
            )
        return Terms(w * log.rewards, w)


class DirectMethod(OffPolicyEstimator):
    """V = 1/n sum_i sum_a pi(a | x_i) q(x_i, a). As good as the prediction.

    Beygelzimer, Langford 2009, "The Offset Tree for Learning with Partial Labels".
    """

    predicts = True

    def terms(self, log: Log, action_probs: Float64, predicted: Float64 | None = None) -> Terms:
        return Terms(_expected(action_probs, predicted) * log.requests, log.requests)


@dataclass(frozen=True)
class SwitchDoublyRobust(OffPolicyEstimator):
    """V = 1/n sum_i [sum_a pi(a | x_i) q(x_i, a) + 1{w_i <= tau} w_i (r_i - q(x_i, a_i))].

    Wang, Agarwal, Dudik 2017, "Optimal and Adaptive Off-policy Evaluation in Contextual Bandits":
    a little bias in exchange for the variance of rare rows with large weights.

    tau: 0 is the direct method, infinity the doubly robust estimator. Raises PolicyError below 0.
    """

    tau: float = 10.0
    predicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if math.isnan(self.tau) or self.tau < 0:
            raise PolicyError(f"tau must be 0 or more, not {self.tau}")

    def terms(self, log: Log, action_probs: Float64, predicted: Float64 | None = None) -> Terms:
        w, expected = weights(log, action_probs), _expected(action_probs, predicted)
        assert predicted is not None
        logged = predicted[np.arange(len(log.actions)), log.actions]  # [n]
        corrected = np.where(w <= self.tau, w * (log.rewards - logged), 0.0)
        return Terms(expected * log.requests + corrected, log.requests)


class DoublyRobust(SwitchDoublyRobust):
    """V = 1/n sum_i [sum_a pi(a | x_i) q(x_i, a) + w_i (r_i - q(x_i, a_i))].

    Dudik, Langford, Li 2011, "Doubly Robust Policy Evaluation and Learning". Unbiased where the
    propensities are right or the predictions are.
    """

    def __init__(self) -> None:
        super().__init__(math.inf)


def estimators(tau: float = 10.0) -> dict[str, OffPolicyEstimator]:
    """Every estimator by its short name. tau: of switch-dr."""
    return {
        "ips": InverseProbabilityWeighting(),
        "snips": SelfNormalizedInverseProbabilityWeighting(),
        "dm": DirectMethod(),
        "dr": DoublyRobust(),
        "switch-dr": SwitchDoublyRobust(tau),
    }


def weights(log: Log, action_probs: Float64) -> Float64:
    """[n] importance weights: the policy's probability of the logged arm over its propensity."""
    if action_probs.ndim != 2 or len(action_probs) != len(log.actions):
        raise PolicyError(
            f"the policy's probabilities have shape {action_probs.shape}, the log "
            f"{len(log.actions)} rows; give one row of probabilities per logged row"
        )
    chosen = action_probs[np.arange(len(log.actions)), log.actions]
    return np.asarray(chosen / log.propensities * log.counts, dtype=np.float64)


def unit_weights(log: Log, action_probs: Float64) -> Float64:
    """[units] sums of `weights` over the rows of each independent unit."""
    return np.asarray(np.bincount(log.units, weights(log, action_probs)), dtype=np.float64)


def effective_rows(log: Log, action_probs: Float64) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2 over independent units; 0 where pi never
    takes a logged arm."""
    w = unit_weights(log, action_probs)
    squares = float(np.square(w).sum())
    return float(w.sum()) ** 2 / squares if squares > 0 else 0.0


def _expected(action_probs: Float64, predicted: Float64 | None) -> Float64:
    if predicted is None or action_probs.shape != predicted.shape:
        shape = None if predicted is None else predicted.shape
        raise PolicyError(
            f"probabilities have shape {action_probs.shape}, predictions {shape}; "
            "they must be equal"
        )
    return np.asarray((action_probs * predicted).sum(axis=1), dtype=np.float64)
