"""The exact policy gradient: the table knows every arm's reward, so nothing need be sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import Fitted, RewardTable
from .training import Training, train

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
