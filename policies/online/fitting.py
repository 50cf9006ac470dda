"""Training a policy that goes on learning: the reward table is what it believes at first."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ..base import moments, origin_of
from ..errors import PolicyError
from ..evaluation.units import best_fixed_index
from ..learners.network import NetworkPolicy
from ..learners.regression import fit_regression
from ..records import Fitted, Float64, RewardTable
from .beliefs import Beliefs
from .budget import Budget
from .context import Context, leading
from .control import Control
from .drift import DriftDetector
from .policy import OnlinePolicy, State

FOLDS = 5
LIMIT = 3.0  # standard deviations of a reward around its prediction, beyond which it is cut


@dataclass(frozen=True)
class Learning:
    """How a policy goes on learning.

    width: what the beliefs' standard deviations are multiplied by before they are drawn from; 1 is
        the posterior itself, and less explores less.
    prior: weight of the table, in requests.
    kept: the part of the prior that is never forgotten.
    memory: requests after which a row counts 1/e of what it did.
    control: the share of requests that the best fixed arm always answers.
    explore: the share of requests with a uniformly random arm.
    budget: the share of that arm's reward that trying others may lose.
    components: leading principal components of the embedding that beliefs read.
    level: the chance that a policy which is not worse is ever switched back to the best fixed arm.
    sure: standard deviations of an expected reward by which the budget's bounds are careful.

    Raises PolicyError on an option out of range.
    """

    width: float = 0.5
    prior: float = 1000.0
    kept: float = 5.0
    memory: float = 2000.0
    control: float = 0.03
    explore: float = 0.005
    budget: float = 0.05
    components: int = 12
    level: float = 0.05
    sure: float = 2.0

    def __post_init__(self) -> None:
        for name in ("prior", "kept", "memory"):
            if not getattr(self, name) > 0:
                raise PolicyError(f"{name} must be above 0, not {getattr(self, name):g}")
        for name in ("control", "level"):
            if not 0 < getattr(self, name) < 1:
                raise PolicyError(
                    f"{name} must be above 0 and below 1, not {getattr(self, name):g}"
                )
        for name in ("budget", "explore"):
            if not 0 <= getattr(self, name) <= 1:
                raise PolicyError(f"{name} must be in [0, 1], not {getattr(self, name):g}")
        for name in ("components", "sure", "width"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name} must be 0 or more, not {getattr(self, name):g}")


def fit_thompson(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    learning: Learning = Learning(),
) -> Fitted:
    """Thompson sampling that begins at ridge regression on the table and learns from then on."""
    whole, table = table, table.filled()
    fitted = fit_regression(table, None, seed)
    offline = fitted.policy
    assert isinstance(offline, NetworkPolicy)
    predicted = _predictions(table, offline, seed)  # [n, A]
    mean, std = moments(table.inputs, True)
    context = Context(
        offline=offline,
        center=predicted.mean(axis=0),
        scale=float(predicted.std(axis=0).mean()) or 1.0,
        mean=mean,
        std=std,
        directions=leading(table.inputs, std, mean, table.dimension, int(learning.components)),
    )
    z = context.around(table.inputs, predicted)  # [n, A, k]
    beliefs = Beliefs.of_table(z, table.rewards, learning.prior, learning.kept)
    arms = len(table.arms)
    state = State(
        best=best_fixed_index(table),
        control=Control(
            learning.control, LIMIT * float(beliefs.noise.max()) ** 0.5, learning.level
        ),
        budget=Budget(learning.budget),
        detectors=[DriftDetector() for _ in range(arms)],
        drifts=[0] * arms,
    )
    policy = OnlinePolicy(
        origin_of("thompson", whole, seed, asdict(learning)),
        context,
        beliefs,
        state,
        z.mean(axis=0),
        width=learning.width,
        explore=learning.explore,
        sure=learning.sure,
        keep=float(np.exp(-1 / learning.memory)),
        lowest=float(table.rewards.min()),
    )
    return Fitted(policy, [])


def _predictions(table: RewardTable, offline: NetworkPolicy, seed: int) -> Float64:
    """[n, A], each row's by a ridge that has not seen it, at the strength of the whole table's:
    else the beliefs would trust the predictions as far as they fit their own training rows."""
    groups, member = np.unique(table.groups, return_inverse=True)
    predicted = offline.scores(table.inputs)
    if len(groups) < 2 * FOLDS:
        return predicted
    fold = (np.random.default_rng(seed).permutation(len(groups)) % FOLDS)[member.ravel()]
    strength = offline.origin.options["ridge"]
    for part in range(FOLDS):
        seen, out = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        other = fit_regression(table.rows(seen), None, seed, ridge=strength).policy
        predicted[out] = other.scores(table.inputs[out])
    return predicted
