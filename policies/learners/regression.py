"""Predict every arm's reward from the embedding, then take the best prediction."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    ridge: strength; None picks it by the exact error of the arms' differences, leaving one group of
        rows (a query) out.
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
    if ridge is not None and not (isinstance(ridge, int | float) and ridge > 0):
        raise PolicyError(f"ridge must be above 0, not {ridge}")
    seen = table.filled()
    mean, std = moments(seen.inputs, standardise, len(seen.feature_names))
    x = ((seen.inputs - mean) / std).astype(np.float64)  # [n, d]
    often = np.ones(len(x)) if seen.weights is None else seen.weights
    x_mean, y_mean = (np.average(each, axis=0, weights=often) for each in (x, seen.rewards))
    weight, strength = ridge_weights(
        x - x_mean, seen.rewards - y_mean, ridge, seen.groups, often
    )  # [A, d]
    layer = Layer(weight.astype(np.float32), np.asarray(y_mean - weight @ x_mean, dtype=np.float32))
    options: dict[str, Any] = {"model": "ridge", "ridge": strength, "temperature": temperature}
    origin = origin_of("regression", table, seed, options | {"standardise": standardise})
    return Fitted(NetworkPolicy(origin, [layer], mean, std, "reward", temperature), [])


def ridge_weights(
    x: Float64,
    y: Float64,
    ridge: float | None,
    groups: Sequence[Hashable],
    often: Float64 | None = None,
) -> tuple[Float64, float]:
    """([A, d] weights, strength) for centred x [n, d] and y [n, A], from one SVD.

    Weights are shrunk and the arms' means are not, so that a strong ridge ends at the best fixed
    arm. As the weights are linear in y, the predicted difference of two arms is what the same ridge
    makes of their difference; a strength is therefore judged by its errors on differences, each
    arm's reward less the mean over arms, which alone decide the choice. With one column of y its
    own errors are what counts.

    groups: one per row; rows that share one, as those of one query at several temperatures, are
        left out together, or a weak ridge that remembers queries would look best.
    often: [n], how often each row counts, of which x and y are centred at the means; None for once.
    """
    root = np.ones(len(x)) if often is None else np.sqrt(often / often.mean())  # [n]
    x, y = x * root[:, None], y * root[:, None]
    u, s, vt = np.linalg.svd(x, full_matrices=False)  # [n, m], [m], [m, d]
    projected = u.T @ y  # [m, A]
    if ridge is None:
        errors = []
        together = _rows_of(groups)
        for strength in GRID:
            left_out = _left_out(y, u, s**2 / (s**2 + strength), projected, root, together)
            if y.shape[1] > 1:
                left_out = left_out - left_out.mean(axis=1, keepdims=True)
            errors.append(float(np.square(left_out).mean()))
        ridge = float(GRID[int(np.argmin(errors))])
    weights = vt.T @ ((s / (s**2 + ridge))[:, None] * projected)  # [d, A]
    return np.asarray(weights.T, dtype=np.float64), float(ridge)


def _rows_of(groups: Sequence[Hashable]) -> list[NDArray[np.intp]]:
    """For every size of group, [G, size]: the rows of the groups of this size. Each row by itself
    where all are of one group, which cannot be left out."""
    rows: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    if len(rows) == 1:
        rows = {row: [row] for row in range(len(groups))}
    sizes: dict[int, list[list[int]]] = {}
    for members in rows.values():
        sizes.setdefault(len(members), []).append(members)
    return [np.array(members, dtype=np.intp) for members in sizes.values()]


def _left_out(
    y: Float64,
    u: Float64,
    shrink: Float64,
    projected: Float64,
    root: Float64,
    together: list[NDArray[np.intp]],
) -> Float64:
    """[n, A]: each row's error by the ridge that was fitted without its group, the mean included.

    For a linear smoother y -> H y it is (I - H_gg)^-1 (y - H y)_g, exactly (block leave-one-out;
    Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.10, for groups
    of one row). H is u diag(shrink) u^T, and root root^T / n for the mean that was taken off.
    """
    residual = y - (u * shrink) @ projected
    errors = np.empty_like(residual)
    for rows in together:
        own = u[rows]  # [G, size, m]
        mean = root[rows][:, :, None] * root[rows][:, None] / len(y)
        hat = (own * shrink) @ own.transpose(0, 2, 1) + mean  # [G, size, size]
        errors[rows] = np.linalg.solve((1 + 1e-9) * np.eye(rows.shape[1]) - hat, residual[rows])
    return errors
