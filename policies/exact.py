"""The exact policy gradient: the table knows every arm's reward, so nothing need be sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .records import Fitted, RewardTable
from .training import Recipe, train

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def fit_exact(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    epochs: int = 30,
    lr: float = 1e-3,
    weight_decay: float = 1e-2,
    batch_size: int = 64,
    hidden: int = 512,
    entropy_bonus: float = 0.0,
    standardise: bool = True,
    keep_best: bool = False,
) -> Fitted:
    """The same MLP as REINFORCE; minimise -sum_a pi(a|x) r(x, a) - entropy_bonus * H."""
    recipe = Recipe(
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        batch_size=batch_size,
        hidden=hidden,
        standardise=standardise,
        keep_best=keep_best,
    )

    def loss(logits: Tensor, rewards: Tensor, generator: torch.Generator) -> Tensor:
        return exact_loss(logits, rewards, entropy_bonus)

    options = vars(recipe) | {"entropy_bonus": entropy_bonus}
    return train("exact", table, validation, seed, recipe, loss, options)


def exact_loss(logits: Tensor, rewards: Tensor, entropy_bonus: float = 0.0) -> Tensor:
    """Scalar: minus the expected reward of the batch. logits, rewards: [B, A]."""
    import torch

    logs = torch.log_softmax(logits, dim=-1)
    probs = logs.exp()
    expected = (probs * rewards).sum(-1).mean()
    return -expected - entropy_bonus * -(probs * logs).sum(-1).mean()
