"""Predict every arm's reward from the embedding, then take the best prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decoders.common.errors import NoSuchName

from ..base import moments, origin_of
from ..errors import PolicyError
from ..records import Fitted, Float64, RewardTable
from .network import Layer, NetworkPolicy
from .training import Head, Training, train

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MODELS = ("ridge", "mlp")
GRID = 10.0 ** np.arange(-2, 9)  # ridge strengths tried when none is given


def fit_regression(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    model: str = "ridge",
    ridge: float | None = None,
    temperature: float = 0.0,
    training: Training = Training(epochs=30),
) -> Fitted:
    """Reward regression and argmax.

    model: "ridge" (closed form; only ridge, temperature and standardise matter) or "mlp" (the
        policy's MLP on squared error).
    ridge: strength; None picks it by exact leave-one-out error of the arms' differences.
    temperature: 0 puts all mass on the best prediction; above 0, in units of the reward, softens it
        so that sampling explores.

    Raises PolicyError on an option out of range.
    """
    if model == "ridge":
        return _fit_ridge(table, seed, ridge, temperature, training.standardise)
    if model != "mlp":
        raise NoSuchName("regression model", model, MODELS)
    targets = table.filled().rewards
    center, scale = float(targets.mean()), float(targets.std()) or 1.0

    def loss(outputs: Tensor, rewards: Tensor, generator: torch.Generator) -> Tensor:
        # Scaled targets, so that one learning rate serves both rewards in [0, 1] and tokens/s.
        return (outputs - (rewards - center) / scale).square().mean()

    options = training.options() | {"model": model, "temperature": temperature}
    head = Head("reward", temperature, center, scale)
    return train("regression", table, validation, seed, training, loss, options, head)


def _fit_ridge(
    table: RewardTable, seed: int, ridge: float | None, temperature: float, standardise: bool
) -> Fitted:
    if ridge is not None and not ridge > 0:
        raise PolicyError(f"ridge must be above 0, not {ridge}")
    seen = table.filled()
    mean, std = moments(seen.inputs, standardise, len(seen.feature_names))
    x = ((seen.inputs - mean) / std).astype(np.float64)  # [n, d]
    x_mean, y_mean = x.mean(axis=0), seen.rewards.mean(axis=0)
    weight, strength = ridge_weights(x - x_mean, seen.rewards - y_mean, ridge)  # [A, d]
    layer = Layer(weight.astype(np.float32), np.asarray(y_mean - weight @ x_mean, dtype=np.float32))
    options: dict[str, Any] = {"model": "ridge", "ridge": strength, "temperature": temperature}
    origin = origin_of("regression", table, seed, options | {"standardise": standardise})
    return Fitted(NetworkPolicy(origin, [layer], mean, std, "reward", temperature), [])


def ridge_weights(x: Float64, y: Float64, ridge: float | None) -> tuple[Float64, float]:
    """([A, d] weights, strength) for centred x [n, d] and y [n, A], from one SVD.

    Weights are shrunk and the arms' means are not, so that a strong ridge ends at the best fixed
    arm. As the weights are linear in y, the predicted difference of two arms is what the same ridge
    makes of their difference; a strength is therefore judged by its errors on differences, each
    arm's reward less the mean over arms, which alone decide the choice.

    The leave-one-out residual of a linear smoother is (y - fit) / (1 - leverage), exactly; the
    1/n is the leverage of the mean that was taken off.
    """
    u, s, vt = np.linalg.svd(x, full_matrices=False)  # [n, m], [m], [m, d]
    projected = u.T @ y  # [m, A]
    if ridge is None:
        errors = []
        for strength in GRID:
            shrink = s**2 / (s**2 + strength)
            residual = y - (u * shrink) @ projected
            leverage = (u**2 * shrink).sum(axis=1, keepdims=True) + 1 / len(x)
            left_out = residual / np.maximum(1 - leverage, 1e-9)  # [n, A]
            differences = left_out - left_out.mean(axis=1, keepdims=True)
            errors.append(float(np.square(differences).mean()))
        ridge = float(GRID[int(np.argmin(errors))])
    weights = vt.T @ ((s / (s**2 + ridge))[:, None] * projected)  # [d, A]
    return np.asarray(weights.T, dtype=np.float64), float(ridge)
