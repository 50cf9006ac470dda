"""Policies that do not look at the query: uniform, one fixed arm, the best fixed arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import BasePolicy, as_rows, origin_of
from .errors import PolicyError
from .evaluation.units import best_fixed_index, mean_rewards
from .records import ANY, Fitted, Float64, Origin, RewardTable, arm_index


class ConstantPolicy(BasePolicy):
    """A policy with one distribution [A] for every query.

    means: [A] mean rewards, where they are known: by them another arm answers where the chosen one
        cannot.
    """

    kind = "constant"

    def __init__(self, origin: Origin, probs: Float64, means: Float64 | None = None) -> None:
        super().__init__(origin)
        probs = np.asarray(probs, dtype=np.float64)
        if probs.shape != (len(origin.arms),) or not np.isclose(probs.sum(), 1, atol=1e-9):
            raise PolicyError("a fixed policy needs one probability per arm, summing to 1")
        if (probs < 0).any():
            raise PolicyError("a probability is below 0")
        if means is not None and (means.shape != probs.shape or not np.isfinite(means).all()):
            raise PolicyError("a fixed policy's mean rewards need one number per arm")
        self._probs, self._means = probs, means

    def scores(self, x: Any) -> Float64:
        rows = as_rows(x, self.origin.width)
        return np.tile(self._probs if self._means is None else self._means, (len(rows), 1))

    def probabilities(self, scores: Float64) -> Float64:
        return np.tile(self._probs, (len(scores), 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"probs": self._probs} | ({} if self._means is None else {"means": self._means})

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> ConstantPolicy:
        return cls(origin, arrays["probs"], arrays.get("means"))


def uniform_policy(arms: Sequence[str]) -> ConstantPolicy:
    """Every arm equally likely; no table needed."""
    origin = Origin(name="uniform", arms=tuple(arms), embedder=ANY)
    return ConstantPolicy(origin, np.full(len(arms), 1 / len(arms)))


def fixed_policy(arms: Sequence[str], arm: str) -> ConstantPolicy:
    """Always this arm; no table needed. Raises PolicyError where it is not one of the arms."""
    origin = Origin(name="fixed", arms=tuple(arms), embedder=ANY, options={"arm": arm})
    return ConstantPolicy(origin, one_hot(len(arms), arm_index(arms, arm)))


def one_hot(size: int, index: int) -> Float64:
    return np.asarray(np.eye(size)[index], dtype=np.float64)


def fit_uniform(table: RewardTable, validation: RewardTable | None = None, seed: int = 0) -> Fitted:
    """Every arm equally likely."""
    origin = origin_of("uniform", table, seed, {}, embedder=ANY)
    return Fitted(ConstantPolicy(origin, np.full(len(table.arms), 1 / len(table.arms))), [])


def fit_fixed(
    table: RewardTable, validation: RewardTable | None = None, seed: int = 0, *, arm: str = ""
) -> Fitted:
    """Always the named arm. Raises PolicyError where the table does not have it."""
    origin = origin_of("fixed", table, seed, {"arm": arm}, embedder=ANY)
    probs = one_hot(len(table.arms), arm_index(table.arms, arm))
    return Fitted(ConstantPolicy(origin, probs), [])


def fit_best_fixed(
    table: RewardTable, validation: RewardTable | None = None, seed: int = 0
) -> Fitted:
    """Always the arm that is best on average over the table."""
    best = best_fixed_index(table)
    origin = origin_of("best-fixed", table, seed, {"arm": table.arms[best]}, embedder=ANY)
    return Fitted(ConstantPolicy(origin, one_hot(len(table.arms), best), mean_rewards(table)), [])
