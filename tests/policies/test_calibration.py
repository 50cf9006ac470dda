"""A policy's own numbers against what was seen, and the gap that it closes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from policy_tables import separable, table, tiny, with_features

from policies import fit, fixed_policy
from policies.evaluation.calibration import calibration
from policies.evaluation.decisions import ALL, decisions, gap_closed


def drawn(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of two arms, rewards of 0 and 1 where each is the best that often, inputs."""
    rng = np.random.default_rng(seed)
    chance = rng.uniform(0.5, 1, size=n)
    first = rng.random(n) < chance
    rewards = np.stack([first, ~first], axis=1).astype(np.float64)
    return np.stack([chance, 1 - chance], axis=1), rewards, np.zeros((n, 1), np.float32)


def test_what_comes_true_has_no_error_and_what_does_not_has_its_distance() -> None:
    probs, rewards, x = drawn()
    data = table(x, rewards)
    right = calibration(data, probs, probs)
    assert right is not None and right.of == "chance" and right.error < 0.03
    assert sum(one.rows for one in right.bins) == len(data)
    inside = [one.low <= one.predicted <= one.high for one in right.bins]
    assert np.mean(inside) >= 0.8
    said = np.stack([probs[:, 0] + 2.25, probs[:, 1]], axis=1)  # rewards, too high by 2.25
    wrong = calibration(data, probs, said)
    assert wrong is not None and wrong.of == "reward"
    assert wrong.error == pytest.approx(2.25, abs=0.03)


def test_nothing_to_compare() -> None:
    probs, rewards, x = drawn(60)
    data = table(x, rewards)
    even = np.full_like(probs, 0.5)
    assert calibration(data, even, even) is None
    assert calibration(data, np.zeros_like(probs), probs) is None, "every row is left out"
    assert calibration(data.rows(range(15)), probs[:15], probs[:15]) is None


def test_a_share_of_nothing_has_an_interval_all_the_same() -> None:
    probs, rewards, x = drawn(40)
    found = calibration(table(x, rewards[:, ::-1] * 0 + [0.0, 1.0]), probs, probs)
    assert found is not None
    assert all(one.observed == 0 == one.low and one.high > 0.1 for one in found.bins)


def test_the_gap_that_is_closed() -> None:
    data = separable(200)
    best = fit("best-fixed", data).policy
    none = {one.task: one.share for one in gap_closed(decisions(best, data))}
    assert none == {ALL: 0.0, "math": 0.0, "qa": 0.0}
    whole = decisions(best, data, probs=np.eye(3)[data.best_arms()])
    assert {one.share for one in gap_closed(whole)} == {1.0}
    learnt = gap_closed(decisions(fit("regression", data).policy, separable(80, seed=1)))
    assert all(one.low <= (one.share or 0) <= one.high for one in learnt)
    assert learnt[0].queries == 80 and 0.5 < (learnt[0].share or 0) < 1


def test_no_gap_and_failed_answers() -> None:
    rewards = np.ones((10, 2))
    rewards[0] = [np.nan, 1]
    data = table(np.zeros((10, 1), np.float32), rewards)
    (found, *_) = gap_closed(decisions(fixed_policy(data.arms, "autoregressive"), data))
    assert (found.share, found.queries) == (None, 9)
    failing = tiny(failures=True)
    made = decisions(fixed_policy(failing.arms, "small"), failing)
    failed = int(np.isnan(failing.rewards[:, 1]).sum())
    assert failed and np.isnan(made.reward).sum() == failed


def test_rows_of_one_query_are_no_more_evidence_than_one() -> None:
    probs, rewards, x = drawn(400)
    once = calibration(table(x, rewards), probs, probs)
    six = np.repeat(np.arange(400), 6)
    rows = replace(table(x[six], rewards[six]), groups=[f"g{i}" for i in six])
    again = calibration(rows, probs[six], probs[six])
    assert once is not None and again is not None and len(once.bins) == len(again.bins)
    for one, other in zip(once.bins, again.bins, strict=True):
        assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.2)
    few = np.repeat(np.arange(15), 6)
    few_rows = replace(table(x[few], rewards[few]), groups=[f"g{i}" for i in few])
    assert calibration(few_rows, probs[few], probs[few]) is None, "15 queries, not 90"


def test_bins_of_a_feature_count_queries() -> None:
    rng = np.random.default_rng(0)
    rewards = np.where(np.arange(40)[:, None] % 2, [1.0, 1.2, 1.0], [1.0, 0.9, 1.0])
    rewards = rewards + rng.normal(scale=0.2, size=(40, 3))
    once = with_features(
        table(np.zeros((40, 1), np.float32), rewards), temperature=np.arange(40) % 2
    )
    six = np.repeat(np.arange(40), 6)
    rows = replace(
        once.rows(six), query_ids=[f"r{i}" for i in range(240)], groups=[f"g{i}" for i in six]
    )
    found = [fit("binned", each).policy.scores(np.array([[0.0], [1.0]])) for each in (once, rows)]
    np.testing.assert_allclose(*found)
