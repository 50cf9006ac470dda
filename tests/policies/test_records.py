"""Reward tables check themselves, and equal content has an equal digest."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from policy_tables import table, tiny

from policies import PolicyError, fit
from policies.evaluation.evaluate import value
from policies.records import ANY, Origin


def test_digest_follows_the_content() -> None:
    data = tiny(failures=True)
    assert data.digest == tiny(failures=True).digest
    assert len(data.digest) == 64
    changes = {
        "reward_name": "other",
        "embedder": "other",
        "arms_fingerprint": "other",
        "tasks": ["x"] * 12,
        "rewards": data.rewards + 1e-12,
        "embeddings": data.embeddings * 2,
    }
    digests = {dataclasses.replace(data, **{k: v}).digest for k, v in changes.items()}
    assert len(digests | {data.digest}) == len(changes) + 1


def test_the_table_is_its_own() -> None:
    x = np.zeros((2, 3), np.float32)
    data = table(x, np.zeros((2, 2)))
    x += 1
    assert (data.embeddings == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        data.rewards[0, 0] = 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query_ids": []}, "at least one query"),
        ({"tasks": ["a"]}, "1 tasks"),
        ({"rewards": np.zeros((12, 2))}, r"need \(12, 3\)"),
        ({"arms": ["a", "a", "b"]}, "listed twice"),
        ({"embeddings": np.full((12, 5), np.nan)}, "nan or infinity"),
        ({"rewards": np.full((12, 3), np.inf)}, "infinite"),
    ],
)
def test_bad_tables_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        dataclasses.replace(tiny(), **change)


def test_failures_count_as_the_worst_reward_when_learning() -> None:
    rewards = np.array([[1.0, np.nan, 0.5], [np.nan] * 3, [0.2, 0.3, np.nan]])
    data = table(np.eye(3, dtype=np.float32), rewards)
    filled = data.filled()
    assert filled.query_ids == ["q0", "q2"]
    np.testing.assert_array_equal(filled.rewards, [[1.0, 0.5, 0.5], [0.2, 0.3, 0.2]])
    np.testing.assert_array_equal(data.best_arms(), [0, 1])
    with pytest.raises(PolicyError, match="every arm failed"):
        data.rows([1]).filled()


def test_split_is_by_task_and_repeatable() -> None:
    data = tiny()
    train, held = data.split(0.34, seed=5)
    assert sorted(held.tasks) == ["math"] * 2 + ["qa"] * 2
    assert sorted(train.query_ids + held.query_ids) == sorted(data.query_ids)
    again = data.split(0.34, seed=5)[1]
    assert again.digest == held.digest
    assert data.split(0.0, seed=5) == (data, None)
    with pytest.raises(PolicyError, match="held-out"):
        data.split(1.0, seed=5)


def test_features_follow_the_embedding() -> None:
    base = tiny()
    features = np.arange(2 * len(base), dtype=np.float32).reshape(-1, 2)
    table = replace(base, features=features, feature_names=("temperature", "length"))
    assert table.digest != base.digest and table.width == base.dimension + 2
    np.testing.assert_array_equal(table.rows([3]).inputs[0, -2:], features[3])
    policy = fit("knn", table).policy
    assert policy.origin.features == ("temperature", "length")
    with pytest.raises(PolicyError, match="width"):
        policy.choose(base.embeddings[0])
    with pytest.raises(PolicyError, match="reads the feature 'temperature'"):
        value(policy, base)
    constant = Origin(name="by", arms=tuple(base.arms), embedder=ANY, features=("length",))
    np.testing.assert_array_equal(table.read_by(constant), features[:, 1:])
