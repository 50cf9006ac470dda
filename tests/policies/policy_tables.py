"""Synthetic reward tables whose truth is known."""

from dataclasses import replace

import numpy as np

from policies import RewardTable

ARMS = ["autoregressive", "small", "ngram"]


def table(
    embeddings: np.ndarray, rewards: np.ndarray, arms: list[str] | None = None
) -> RewardTable:
    n = len(embeddings)
    return RewardTable(
        query_ids=[f"q{i}" for i in range(n)],
        tasks=[("math", "qa")[i % 2] for i in range(n)],
        embeddings=embeddings,
        arms=arms or ARMS[: rewards.shape[1]],
        rewards=rewards,
        reward_name="toy/1",
        embedder=f"toy/{embeddings.shape[1]}",
        arms_fingerprint="arms-1",
    )


def separable(n: int = 512, d: int = 8, seed: int = 0) -> RewardTable:
    """The best arm is the largest of the first three inputs; no fixed arm is much good."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    best = x[:, : len(ARMS)].argmax(axis=1)
    rewards = 0.1 + 0.8 * np.eye(len(ARMS))[best] + rng.normal(scale=0.02, size=(n, len(ARMS)))
    return table(x, rewards)


def tiny(seed: int = 0, failures: bool = False) -> RewardTable:
    rng = np.random.default_rng(seed)
    rewards = rng.random((12, 3))
    if failures:
        rewards[rng.random((12, 3)) < 0.3] = np.nan
        rewards[:, 0] = 0.5
    return table(rng.normal(size=(12, 5)).astype(np.float32), rewards)


def with_features(data: RewardTable, **columns: np.ndarray) -> RewardTable:
    """The same table, whose rows also have these features."""
    features = np.stack(list(columns.values()), axis=1).astype(np.float32)
    return replace(data, features=features, feature_names=tuple(columns))


def with_lossy_arm(seed: int = 0, failures: bool = False) -> RewardTable:
    """`tiny` for risk control: its last input is the temperature, 0, and one arm is lossy."""
    made = tiny(seed, failures)
    losses = np.where(np.isnan(made.rewards), np.nan, [0.0, 0.1, 0.0])
    return replace(
        made,
        embeddings=made.embeddings[:, :-1],
        features=np.zeros((len(made), 1), dtype=np.float32),
        feature_names=("temperature",),
        losses=losses,
    )


def data_for(name: str, seed: int = 0, failures: bool = False) -> RewardTable:
    """A table that the policy can be trained on: bins need a feature, risk control losses."""
    if name == "risk-control":
        return with_lossy_arm(seed, failures)
    data = tiny(seed, failures)
    temperature = np.arange(len(data)) % 3 / 2
    return with_features(data, temperature=temperature) if name == "binned" else data


OPTIONS: dict[str, dict[str, object]] = {
    "reinforce": {"hidden": 8, "epochs": 2, "keep_best": False},
    "exact": {"hidden": 8, "epochs": 2},
    "knn": {"k": 3},
    "regression": {},
    "logistic": {},
    "binned": {},
    "best-fixed": {},
    "fixed": {"arm": "small"},
    "uniform": {},
    "thompson": {},
    "risk-control": {"lossless": ["autoregressive", "ngram"], "max_loss": 0.5, "confidence": 0.5},
}
