"""REINFORCE on an MLP over the query's embedding: the paper's policy (sections 2.4, 3.1, A.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import unknown
from .records import Fitted, RewardTable
from .training import Training, train

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BASELINES = ("none", "mean")


def fit_reinforce(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    entropy_bonus: float = 0.0,
    baseline: str = "none",
    training: Training = Training(),
) -> Fitted:
    """Sample one arm per query and step; minimise -(r - b) log pi(a|x) - entropy_bonus * H.

    baseline: "none" as in the paper, or "mean": the mean reward of the batch's other queries,
    which lowers the variance and leaves the gradient unbiased. entropy_bonus is in units of the
    reward. Raises PolicyError on an option out of range.
    """
    if baseline not in BASELINES:
        raise unknown("baseline", baseline, BASELINES)

    def loss(logits: Tensor, rewards: Tensor, generator: torch.Generator) -> Tensor:
        return reinforce_loss(logits, rewards, generator, entropy_bonus, baseline)

    options = training.options() | {"entropy_bonus": entropy_bonus, "baseline": baseline}
    return train("reinforce", table, validation, seed, training, loss, options)


def reinforce_loss(
    logits: Tensor,
    rewards: Tensor,
    generator: torch.Generator,
    entropy_bonus: float = 0.0,
    baseline: str = "none",
) -> Tensor:
    """Scalar whose gradient is an unbiased estimate of the exact loss's. logits, rewards: [B, A].

    Only the sampled arm's reward is looked at, as if the others had never been tried.
    """
    import torch

    logs = torch.log_softmax(logits, dim=-1)
    arms = torch.multinomial(logs.detach().exp(), 1, generator=generator)  # [B, 1]
    reward = rewards.gather(1, arms).squeeze(1)  # [B]
    if baseline == "mean" and len(reward) > 1:
        others = (reward.sum() - reward) / (len(reward) - 1)  # leave-one-out keeps it unbiased
        reward = reward - others
    loss = -(reward * logs.gather(1, arms).squeeze(1)).mean()
    return loss - entropy_bonus * -(logs.exp() * logs).sum(-1).mean()
