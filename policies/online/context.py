"""Inputs of the online regressions: few numbers, the offline prediction among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.tensor_files import below

from ..base import as_rows
from ..errors import PolicyError
from ..learners.network import NetworkPolicy
from ..products import product
from ..records import Float32, Float64, Origin


@dataclass(frozen=True, eq=False)
class Context:
    """For each arm: 1, its offline prediction, and what all arms share.

    offline: predicts every arm's reward.
    center, scale: [A] and one number, by which predictions are standardised.
    mean, std: [w] of the inputs.
    directions: [w, q], from standardised inputs to the shared numbers.

    A bandit cannot learn 576 weights an arm from a few hundred answers. The prediction keeps what
    was learnt offline in one number; the shared ones, the features and leading principal
    components of the embedding, let an arm's belief move by kind of request.
    """

    offline: NetworkPolicy
    center: Float64
    scale: float
    mean: Float32
    std: Float32
    directions: Float32

    def __post_init__(self) -> None:
        width = self.offline.origin.width
        if self.directions.ndim != 2 or self.directions.shape[0] != width:
            raise PolicyError("a context's directions do not fit the width of a query")

    def of(self, x: Any) -> Float64:
        """[n, A, k] for inputs [n, w], k = 2 + q."""
        rows = as_rows(x, self.offline.origin.width)
        return self.around(rows, self.offline.scores(rows))

    def around(self, rows: Float32, predicted: Float64) -> Float64:
        """[n, A, k], with predictions [n, A] given."""
        shared = product((rows - self.mean) / self.std, self.directions)  # [n, q]
        n, arms = predicted.shape
        return np.concatenate(
            [
                np.ones((n, arms, 1)),
                ((predicted - self.center) / self.scale)[:, :, None],
                np.repeat(shared[:, None].astype(np.float64), arms, axis=1),
            ],
            axis=2,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        own = {f"offline.{name}": array for name, array in self.offline.arrays().items()}
        return own | {
            "center": self.center,
            "predicted_std": np.array([self.scale]),
            "input_mean": self.mean,
            "input_std": self.std,
            "directions": self.directions,
        }

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> Context:
        """settings: of the offline predictor."""
        return cls(
            NetworkPolicy.rebuild(origin, settings, below(arrays, "offline.")),
            arrays["center"],
            float(arrays["predicted_std"][0]),
            arrays["input_mean"],
            arrays["input_std"],
            arrays["directions"],
        )


def leading(x: Float32, std: Float32, mean: Float32, dimension: int, components: int) -> Float32:
    """[w, q]: the first principal components of standardised embeddings, scaled to variance 1, then
    the features one by one.

    dimension: of the embedding, the first columns of x [n, w].
    """
    n, width = x.shape
    rows = (x[:, :dimension] - mean[:dimension]) / std[:dimension]
    q = min(components, dimension, n - 1)
    features = np.eye(width, dtype=np.float32)[:, dimension:]
    if q < 1:
        return features
    _, s, vt = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    q = min(q, int((s > 1e-6 * max(float(s[0]), 1e-12)).sum()))
    found = np.zeros((width, q), dtype=np.float32)
    found[:dimension] = (vt[:q] / s[:q, None]).T * np.sqrt(n)
    return np.concatenate([found, features], axis=1)
