"""Policies: which arm to decode a query with, learned from a table of rewards.

``fit`` trains one on a ``RewardTable``, ``report`` says what it is worth, ``load`` brings one
back. Importing this package imports numpy and nothing heavier: torch, scikit-learn and MLflow
come in where they are used.
"""

from __future__ import annotations

from .base import BasePolicy
from .errors import PolicyError
from .evaluation.evaluate import Evaluation, Value, report, value
from .fitting import POLICIES, fit, options_of
from .fixed import fit_best_fixed, fit_fixed, fit_uniform, fixed_policy, uniform_policy
from .learners.binned import fit_binned
from .learners.knn import fit_knn
from .learners.logistic import fit_logistic
from .learners.regression import fit_regression
from .learners.reinforce import fit_exact, fit_reinforce
from .loading import KINDS, load
from .records import (
    Decision,
    EpochStats,
    Fit,
    Fitted,
    LearningPolicy,
    Origin,
    Policy,
    RewardTable,
    check_compatible,
)
from .selection.guard import Guarded, guarded

__all__ = [
    "KINDS", "POLICIES", "BasePolicy", "Decision", "EpochStats", "Evaluation", "Fit", "Fitted",
    "Guarded", "LearningPolicy", "Origin", "Policy", "PolicyError", "RewardTable", "Value",
    "check_compatible", "fit", "fit_best_fixed", "fit_binned", "fit_exact", "fit_fixed",
    "fit_knn", "fit_logistic", "fit_regression", "fit_reinforce", "fit_uniform", "fixed_policy",
    "guarded", "load", "options_of", "report", "uniform_policy", "value",
]  # fmt: skip
