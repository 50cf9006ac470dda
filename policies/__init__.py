"""Policies: which arm to decode a query with, learned from a table of rewards.

``fit`` trains one on a ``RewardTable``, ``report`` says what it is worth, ``load`` brings one
back. Importing this package imports numpy and nothing heavier: torch, scikit-learn and MLflow
come in where they are used.
"""

from __future__ import annotations

from .bands import fit_bands
from .base import BasePolicy
from .errors import PolicyError
from .evaluate import Evaluation, Value, report, value
from .exact import fit_exact
from .fitting import POLICIES, fit, options_of
from .fixed import fit_best_fixed, fit_fixed, fit_uniform, fixed_policy, uniform_policy
from .guard import Guarded, guarded
from .knn import fit_knn
from .ladder import with_temperature
from .loading import KINDS, load
from .logistic import fit_logistic
from .online import OnlinePolicy, fit_linucb, fit_thompson
from .promise import fit_promised
from .promised import Promise, PromisedPolicy
from .records import (
    Decision,
    EpochStats,
    Fit,
    Fitted,
    Origin,
    Policy,
    RewardTable,
    check_compatible,
)
from .regression import fit_regression
from .reinforce import fit_reinforce

__all__ = [
    "KINDS",
    "POLICIES",
    "BasePolicy",
    "Decision",
    "EpochStats",
    "Evaluation",
    "Fit",
    "Fitted",
    "Guarded",
    "OnlinePolicy",
    "Origin",
    "Policy",
    "PolicyError",
    "Promise",
    "PromisedPolicy",
    "RewardTable",
    "Value",
    "check_compatible",
    "fit",
    "fit_bands",
    "fit_best_fixed",
    "fit_exact",
    "fit_fixed",
    "fit_knn",
    "fit_linucb",
    "fit_logistic",
    "fit_promised",
    "fit_regression",
    "fit_reinforce",
    "fit_thompson",
    "fit_uniform",
    "fixed_policy",
    "guarded",
    "load",
    "options_of",
    "report",
    "uniform_policy",
    "value",
    "with_temperature",
]
