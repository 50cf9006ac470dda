"""Values are exact, failures are left out, references are what they say."""

from dataclasses import replace

import numpy as np
import pytest
from policy_tables import ARMS, separable, table, tiny, with_features

import policies
from policies import PolicyError
from policies.evaluation.decisions import decisions, regret
from policies.evaluation.evaluate import per_query, references
from policies.selection.guard import guarded


def test_value_is_the_expectation() -> None:
    data = tiny()
    policy = policies.fit("exact", data, None, 0, hidden=4, epochs=1).policy
    probs = policy.distribution(data.embeddings)
    found = policies.value(policy, data)
    assert found.mean == pytest.approx(float((probs * data.rewards).sum(1).mean()))
    assert found.low < found.mean < found.high
    assert found.queries == 12
    greedy = policies.value(policy, data, greedy=True)
    picked = data.rewards[np.arange(12), probs.argmax(1)]
    assert greedy.mean == pytest.approx(float(picked.mean()))


def test_failed_arms_are_left_out_of_the_expectation() -> None:
    probs = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    rewards = np.array([[1.0, np.nan, 0.4], [1.0, np.nan, 1.0], [np.nan] * 3])
    np.testing.assert_allclose(per_query(probs, rewards), [0.8, np.nan, np.nan])


def test_failed_mass_is_reported() -> None:
    data = table(np.eye(2, dtype=np.float32), np.array([[1.0, np.nan], [0.5, 0.1]]))
    row = policies.value(policies.fixed_policy(data.arms, "small"), data)
    assert (row.mean, row.queries, row.failed_mass) == (pytest.approx(0.1), 1, 0.5)
    nothing = policies.value(policies.fixed_policy(data.arms, "small"), data.rows([0]))
    assert np.isnan([nothing.mean, nothing.low, nothing.high]).all()
    assert nothing.queries == 0


def test_reference_rows() -> None:
    rewards = np.array([[0.9, 0.1], [0.1, 0.8], [0.8, 0.1], [0.7, 0.6]])  # math, qa, math, qa
    data = table(np.eye(4, dtype=np.float32), rewards)
    report = policies.report(policies.uniform_policy(data.arms), data)
    means = {row.name: row.mean for row in report.rows}
    assert means == pytest.approx(
        {
            "greedy": 0.625,
            "dynamic": 0.5125,
            "uniform": 0.5125,
            "fixed/autoregressive": 0.625,
            "fixed/small": 0.4,
            "best-fixed": 0.625,
            "per-task-best": 0.775,
            "oracle": 0.8,
        }
    )
    assert report.best_fixed == "autoregressive"
    assert report.gain.mean == 0
    assert report.tasks == ["math", "qa"]
    np.testing.assert_array_equal(report.choices, [[1, 0], [1, 0]])
    assert report.by_task["qa"]["per-task-best"] == pytest.approx(0.7)


def test_a_query_counts_once_however_many_rows_it_has() -> None:
    """The one arm is best for 40 queries of one row, the other for 20 of three."""
    queries = [f"a{i}" for i in range(40)] + [f"b{i // 3}" for i in range(60)]
    rewards = np.repeat([[1.0, 0.0], [0.0, 1.0]], [40, 60], axis=0)
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    data = replace(table(x, rewards), groups=queries, tasks=[query[0] for query in queries])
    policy = policies.fit("best-fixed", data).policy
    found = policies.report(policy, data)
    assert found.best_fixed == guarded(data, policy="knn").best_fixed == ARMS[0]
    assert found["greedy"].mean == pytest.approx(2 / 3) and found["greedy"].queries == 60
    assert found.gain.queries == 60 and found["uniform"].mean == pytest.approx(0.5)
    assert found.by_task["b"]["oracle"] == 1
    left = regret(decisions(policy, data), ARMS[1])
    assert (left.mean, left.queries) == (pytest.approx(1 / 3), 60)
    assert left.worse_than_plain == pytest.approx(1 / 3)


def test_an_oracle_that_chooses_by_luck_is_called_optimistic() -> None:
    data = tiny()
    policy = policies.fit("best-fixed", data).policy
    drawn = replace(data, drawn=data.rewards[None])
    hot = with_features(data, temperature=np.ones(len(data)))
    for lucky in (drawn, replace(data, timed=True), hot):
        found = policies.report(policy, lucky)
        assert found.optimistic and found.oracle == "oracle (optimistic)"
    cold = with_features(data, temperature=np.zeros(len(data)))
    assert not any(policies.report(policy, each).optimistic for each in (data, cold))


def test_best_fixed_is_chosen_on_the_training_table() -> None:
    data = tiny()
    worst = data.rewards.mean(axis=0).argmin()
    train = table(data.embeddings, np.tile(np.eye(3)[worst], (12, 1)))
    rows = references(data, train)
    assert (rows["best-fixed"][:, worst] == 1).all()
    assert (rows["per-task-best"][:, worst] == 1).all()
    other = table(data.embeddings, data.rewards, ["a", "b", "c"])
    with pytest.raises(PolicyError, match="same arms"):
        references(data, other)


def test_a_policy_for_fewer_arms_and_one_for_others() -> None:
    data = tiny()
    some = policies.value(policies.uniform_policy([ARMS[2], ARMS[0]]), data)
    assert some.mean == pytest.approx(float(data.rewards[:, [0, 2]].mean()))
    with pytest.raises(PolicyError, match="no rewards for x"):
        policies.value(policies.uniform_policy(["x", ARMS[0]]), data)


def test_the_interval_covers_the_truth() -> None:
    """95% intervals of 100-query samples hold the long-run value in most of 60 tries."""
    population = separable(6000, seed=99).rewards[:, 0]
    truth = population.mean()
    policy = policies.uniform_policy(ARMS)
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        rewards = rng.choice(population, size=100)
        data = table(np.zeros((100, 1), np.float32), np.tile(rewards[:, None], (1, 3)))
        row = policies.value(policy, data, resamples=200)
        hits += row.low <= truth <= row.high
    assert hits >= 50
