"""The code that all policies share: reading a query's embedding, choosing an arm, saving."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .errors import PolicyError
from .records import Decision, Float32, Float64, Origin, RewardTable
from .storage import fingerprint, write


class BasePolicy(ABC):
    """A policy is an origin, plain settings and plain arrays; nothing else is ever stored."""

    kind: ClassVar[str]

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    @property
    def origin(self) -> Origin:
        return self._origin

    @property
    def name(self) -> str:
        return self._origin.name

    @property
    def arms(self) -> list[str]:
        return list(self._origin.arms)

    @property
    def embedder(self) -> str:
        return self._origin.embedder

    @abstractmethod
    def scores(self, x: Any) -> Float64:
        """[n, A]: probabilities or predicted rewards, whichever the policy works with."""

    def probabilities(self, scores: Float64) -> Float64:
        """[n, A] scores to [n, A] probabilities; as they are, unless a policy says otherwise."""
        return scores

    def distribution(self, x: Any) -> Float64:
        """[n, A] probabilities; every row sums to 1."""
        return self.probabilities(self.scores(x))

    def choose(self, x: Any, rng: np.random.Generator | None = None) -> Decision:
        """One arm for one query: the most likely (first of equals), or a draw where rng is given.

        A greedy choice has propensity 1.0. Raises PolicyError unless x holds exactly one query.
        """
        scores = self.scores(x)  # [1, A]
        return self.decide(scores, self.probabilities(scores), rng)

    def decide(
        self, scores: Float64, probabilities: Float64, rng: np.random.Generator | None = None
    ) -> Decision:
        """`choose`, where the scores and the probabilities ([1, A] both) are known."""
        if len(scores) != 1:
            raise PolicyError(f"choose takes one query at a time, not {len(scores)}")
        probs = probabilities[0]
        index, propensity = int(np.argmax(probs)), 1.0
        if rng is not None:
            index = int(rng.choice(len(probs), p=probs))
            propensity = float(probs[index])
        return Decision(self._origin.arms[index], index, propensity, scores[0].tolist())

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers to store, by name."""

    def settings(self) -> dict[str, Any]:
        """The plain values to store (JSON)."""
        return {}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over everything that `save` writes."""
        return fingerprint(self.kind, self.origin, self.settings(), self.arrays())

    @classmethod
    @abstractmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> BasePolicy:
        """The inverse of ``settings`` and ``arrays``; raises PolicyError where they do not fit."""

    def save(self, folder: str | Path) -> Path:
        """Write the policy; a kill at any moment leaves the old one or the new one."""
        return write(folder, self.kind, self.origin, self.settings(), self.arrays())


def origin_of(
    name: str,
    table: RewardTable,
    seed: int,
    options: dict[str, Any],
    embedder: str | None = None,
    features: tuple[str, ...] = (),
) -> Origin:
    """The origin of a policy fitted to this table.

    embedder: ANY for one that ignores queries.
    features: what such a one reads of the request; others read all that the table has.
    """
    return Origin(
        name=name,
        arms=tuple(table.arms),
        embedder=embedder or table.embedder,
        dimension=0 if embedder else table.dimension,
        reward_name=table.reward_name,
        table_digest=table.digest,
        arms_fingerprint=table.arms_fingerprint,
        seed=seed,
        options=json.loads(json.dumps(options)),  # as it will be read back: lists, not tuples
        features=features if embedder else table.feature_names,
        machine=table.machine,
    )


def as_rows(x: Any, dimension: int) -> Float32:
    """Embeddings as [n, d] float32 on the host, from numpy or torch, one query ([d]) or many.

    dimension: d; 0 takes any. Raises PolicyError for another width, nan or infinity.
    """
    if hasattr(x, "detach"):  # a torch tensor, without importing torch here
        x = x.detach().cpu().float().numpy()
    rows = np.asarray(x, dtype=np.float32)
    rows = rows[None, :] if rows.ndim == 1 else rows
    if rows.ndim != 2 or (dimension and rows.shape[1] != dimension):
        raise PolicyError(
            f"the policy reads embeddings of width {dimension or 'd'}, not an array of shape "
            f"{tuple(rows.shape)}; embed the query with the policy's own embedder"
        )
    if not np.isfinite(rows).all():
        raise PolicyError("the query's embedding holds nan or infinity; embed the query again")
    return rows


def softmax(logits: Float64) -> Float64:
    """[n, A] -> [n, A]; -inf gives exactly 0."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float64)


def from_rewards(rewards: Float64, temperature: float) -> Float64:
    """Predicted rewards [n, A] to probabilities: all on the best at 0, else softmax(r / T)."""
    if temperature > 0:
        behind = rewards - rewards.max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):  # a temperature next to 0 puts the others at -inf
            return softmax(behind / temperature)
    probs = np.zeros_like(rewards)
    probs[np.arange(len(rewards)), rewards.argmax(axis=-1)] = 1.0
    return probs


def moments(x: Float32, standardise: bool, features: int = 0) -> tuple[Float32, Float32]:
    """(mean, std) of each input [d]; (0, 1) where standardising is off or an input is constant.

    features: number of inputs at the end that are named features. Their deviations are made
        smaller, so that in sum they vary as much as the embedding: otherwise a temperature would be
        one of hundreds of equal inputs.
    """
    d = x.shape[1]
    if not standardise:
        return np.zeros(d, dtype=np.float32), np.ones(d, dtype=np.float32)
    mean = x.mean(axis=0, dtype=np.float64)
    std = x.std(axis=0, dtype=np.float64)
    std[std < 1e-6] = 1.0
    if 0 < features < d:
        std[-features:] /= max(1.0, ((d - features) / features) ** 0.5)
    return mean.astype(np.float32), std.astype(np.float32)
