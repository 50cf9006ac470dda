"""k nearest neighbours: the mean rewards of the training queries closest to this one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName

from ..base import BasePolicy, as_rows, from_rewards, moments, origin_of
from ..errors import PolicyError
from ..products import product
from ..records import Fitted, Float32, Float64, Origin, RewardTable

METRICS = ("cosine", "euclidean")


class NeighbourPolicy(BasePolicy):
    """Predicted rewards are means over the k nearest training queries, on standardised inputs.

    points: [m, d] standardised training embeddings.
    rewards: [m, A], no nan.
    temperature: as in NetworkPolicy's reward head.
    """

    kind = "neighbours"

    def __init__(
        self,
        origin: Origin,
        points: Float32,
        rewards: Float64,
        mean: Float32,
        std: Float32,
        k: int = 15,
        metric: str = "cosine",
        temperature: float = 0.0,
    ) -> None:
        super().__init__(origin)
        if metric not in METRICS:
            raise NoSuchName("metric", metric, METRICS)
        if k < 1 or temperature < 0:
            raise PolicyError("k must be at least 1 and temperature at least 0")
        if points.ndim != 2 or rewards.shape != (len(points), len(origin.arms)):
            raise PolicyError("a neighbour policy needs one row of rewards for each point")
        if not points.shape[1:] == mean.shape == std.shape == (origin.width,):
            raise PolicyError("a neighbour policy's arrays do not agree on the width of a query")
        self._points = np.asarray(points, np.float32)
        self._rewards = np.asarray(rewards, np.float64)
        self._mean, self._std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        self._k, self._metric, self._temperature = int(k), metric, float(temperature)
        unit = self._points if metric == "euclidean" else _unit(self._points)
        self._keys = np.ascontiguousarray(unit.T)  # [d, m]
        self._half_squares = np.square(unit).sum(axis=1) / 2  # [m]

    def scores(self, x: Any) -> Float64:
        rows = (as_rows(x, self.origin.width) - self._mean) / self._std
        if self._metric == "cosine":
            rows = _unit(rows)
        # x.p - |p|^2/2 orders by distance; for unit vectors it orders by cosine as well.
        closeness = product(rows, self._keys) - self._half_squares  # [n, m]
        k = min(self._k, closeness.shape[1])
        nearest = np.argpartition(-closeness, k - 1, axis=1)[:, :k]  # [n, k]
        return np.asarray(self._rewards[nearest].mean(axis=1), dtype=np.float64)

    def probabilities(self, scores: Float64) -> Float64:
        return from_rewards(scores, self._temperature)

    def arrays(self) -> dict[str, NDArray[Any]]:
        inputs: dict[str, NDArray[Any]] = {"mean": self._mean, "std": self._std}
        return inputs | {"points": self._points, "rewards": self._rewards}

    def settings(self) -> dict[str, Any]:
        return {"k": self._k, "metric": self._metric, "temperature": self._temperature}

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> NeighbourPolicy:
        parts: dict[str, Any] = {**arrays, **settings}
        return cls(origin, **parts)


def _unit(rows: Float32) -> Float32:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), dtype=np.float32)


def fit_knn(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    k: int = 15,
    metric: str = "cosine",
    temperature: float = 0.0,
    standardise: bool = True,
) -> Fitted:
    """Keep the table and average the k nearest queries' rewards; k is at most the table's size.

    metric: "cosine" or "euclidean". Raises PolicyError on an option out of range.
    """
    seen = table.filled()
    mean, std = moments(seen.inputs, standardise, len(seen.feature_names))
    points = ((seen.inputs - mean) / std).astype(np.float32)
    options: dict[str, Any] = {"k": k, "metric": metric, "temperature": temperature}
    origin = origin_of("knn", table, seed, options | {"standardise": standardise})
    rewards = seen.rewards
    return Fitted(NeighbourPolicy(origin, points, rewards, mean, std, k, metric, temperature), [])
