"""REINFORCE on an MLP over the query's embedding: the paper's policy (sections 2.4, 3.1, A.3).

The paper samples an arm and looks at its reward alone. The table knows every arm's, so that by
default the sampled arm is judged by its exact advantage, training starts at the best fixed arm, and
the epoch is chosen on queries set aside. `PAPER` has the options that give the paper's own, but
for standardised inputs, where the paper's are raw (section 3.1; `standardise=False`). As the table
knows every arm's reward, nothing need be sampled at all: `fit_exact` follows the exact gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decoders.common.errors import NoSuchName

from ..evaluation.units import best_fixed_index
from ..records import Fitted, Float64, RewardTable
from .training import Training, train

if TYPE_CHECKING:
    import torch
    from torch import Tensor


BASELINES = ("none", "mean", "exact")
STARTS = ("random", "best-fixed")
PAPER: dict[str, Any] = {
    "baseline": "none",
    "start": "random",
    "epochs": Training.epochs,
    "keep_best": False,
    "patience": 0,
}


def fit_reinforce(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    entropy_bonus: float = 0.0,
    baseline: str = "exact",
    start: str = "best-fixed",
    training: Training = Training(epochs=30, keep_best=True, patience=5),
) -> Fitted:
    """Sample one arm per query and step; minimise -(r - b) log pi(a|x) - entropy_bonus * H.

    baseline: "exact", the policy's expected reward on the query, sum_a pi(a|x) r(x, a); "mean",
        the mean reward of the batch's other queries; or "none" as in the paper. The first two lower
        the variance and leave the gradient unbiased.
    start: "best-fixed", half of the probability on the best fixed arm for every query; or "random"
        as in the paper.
    entropy_bonus: in units of the reward.

    Raises PolicyError on an option out of range.
    """
    if baseline not in BASELINES:
        raise NoSuchName("baseline", baseline, BASELINES)
    if start not in STARTS:
        raise NoSuchName("start", start, STARTS)

    def loss(logits: Tensor, rewards: Tensor, generator: torch.Generator) -> Tensor:
        return reinforce_loss(logits, rewards, generator, entropy_bonus, baseline)

    options = training.options() | {
        "entropy_bonus": entropy_bonus,
        "baseline": baseline,
        "start": start,
    }
    prior = best_fixed_logits(table) if start == "best-fixed" else None
    return train("reinforce", table, validation, seed, training, loss, options, prior=prior)


def best_fixed_logits(table: RewardTable) -> Float64:
    """[A]: half of the probability on the best fixed arm, the others share the other half."""
    size = len(table.arms)
    logits = np.full(size, -np.log(max(size - 1, 1)))
    logits[best_fixed_index(table)] = 0.0
    return logits


def reinforce_loss(
    logits: Tensor,
    rewards: Tensor,
    generator: torch.Generator,
    entropy_bonus: float = 0.0,
    baseline: str = "none",
) -> Tensor:
    """Scalar whose gradient is an unbiased estimate of the exact loss's. logits, rewards: [B, A].

    Only the sampled arm's reward is looked at, as if the others had never been tried; the baseline
    "exact" knows them.
    """
    import torch

    logs = torch.log_softmax(logits, dim=-1)
    arms = torch.multinomial(logs.detach().exp(), 1, generator=generator)  # [B, 1]
    reward = rewards.gather(1, arms).squeeze(1)  # [B]
    if baseline == "mean" and len(reward) > 1:
        others = (reward.sum() - reward) / (len(reward) - 1)  # leave-one-out keeps it unbiased
        reward = reward - others
    elif baseline == "exact":
        reward = reward - (logs.detach().exp() * rewards).sum(-1)
    loss = -(reward * logs.gather(1, arms).squeeze(1)).mean()
    return loss - entropy_bonus * -(logs.exp() * logs).sum(-1).mean()


def fit_exact(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    entropy_bonus: float = 0.0,
    training: Training = Training(epochs=30),
) -> Fitted:
    """Train REINFORCE's MLP exactly: minimise -sum_a pi(a|x) r(x, a) - entropy_bonus * H."""

    def loss(logits: Tensor, rewards: Tensor, generator: torch.Generator) -> Tensor:
        return exact_loss(logits, rewards, entropy_bonus)

    options = training.options() | {"entropy_bonus": entropy_bonus}
    return train("exact", table, validation, seed, training, loss, options)


def exact_loss(logits: Tensor, rewards: Tensor, entropy_bonus: float = 0.0) -> Tensor:
    """Scalar: minus the expected reward of the batch. logits, rewards: [B, A]."""
    import torch

    logs = torch.log_softmax(logits, dim=-1)
    probs = logs.exp()
    expected = (probs * rewards).sum(-1).mean()
    return -expected - entropy_bonus * -(probs * logs).sum(-1).mean()
