"""Policies that learn while they serve: beliefs, choices, and what holds them back."""

import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import FULL, examples
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import ARMS, separable, table

import policies
from decoders.common.errors import DraftpickError, NoSuchName
from policies import PolicyError, RewardTable
from policies.online import OnlinePolicy
from policies.online.beliefs import SHRINK, Beliefs, thompson
from policies.online.budget import Budget
from policies.online.control import Control, stitched
from policies.online.drift import MIN_REWARDS, DriftDetector


def learner(data: RewardTable | None = None, **options: Any) -> Any:
    return policies.fit("thompson", separable() if data is None else data, **options).policy


def serve(
    policy: OnlinePolicy, data: RewardTable, rows: Any, rng: np.random.Generator
) -> np.ndarray:
    """[n], what the policy earns on these rows while it learns from them."""
    earned = []
    for row in rows:
        x, rewards = data.inputs[row], data.rewards[row]
        found = policy.choose(x, rng)
        policy.update(x, found.arm, rewards[found.index], found.propensity)
        earned.append(rewards[found.index])
    return np.array(earned)


# -- beliefs --------------------------------------------------------------------------------------


@examples(25)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(3, 12),
    extra=st.integers(0, 3),
    keep=st.floats(0.5, 1),
    prior=st.floats(1, 50),
)
def test_beliefs_are_a_weighted_ridge_regression(
    seed: int, n: int, extra: int, keep: float, prior: float
) -> None:
    """The table's rows weigh prior / n, but for the kept part less with every request; a request's
    row weighs keep ** age; every weight but the first is drawn to the table's."""
    rng = np.random.default_rng(seed)
    z, rewards = rng.normal(size=(n, 2, 2 + extra)), rng.normal(size=(n, 2))
    z[:, :, 0] = 1
    beliefs = Beliefs.of_table(z, rewards, prior, prior / 4)
    home = beliefs.table_moment, beliefs.table_precision
    fit = np.array([np.linalg.solve(p, m) for m, p in zip(*home, strict=True)])
    steps = [(rng.normal(size=(2, 2 + extra)), int(rng.integers(2)), float(rng.normal()))
             for _ in range(9)]  # fmt: skip
    for row, arm, reward in steps:
        beliefs.add(row, arm, reward, keep)
    free = np.diag(SHRINK * (np.arange(2 + extra) > 0))
    for arm in (0, 1):
        weight = prior / 4 + 0.75 * prior * keep ** len(steps)
        whole = weight * beliefs.table_precision[arm] + free
        right = weight * beliefs.table_moment[arm] + free @ fit[arm]
        for age, (row, taken, reward) in enumerate(reversed(steps)):
            if taken == arm:
                whole = whole + keep**age * np.outer(row[arm], row[arm])
                right = right + keep**age * reward * row[arm]
        np.testing.assert_allclose(beliefs.theta[arm], np.linalg.solve(whole, right), atol=1e-7)
        asked = rng.normal(size=(1, 2, 2 + extra))
        variance = beliefs.noise[arm] * asked[0, arm] @ np.linalg.solve(whole, asked[0, arm])
        np.testing.assert_allclose(beliefs.predict(asked)[1][0, arm], variance**0.5, rtol=1e-6)


# -- choosing -------------------------------------------------------------------------------------


@examples(40)
@given(seed=st.integers(0, 2**31), arms=st.integers(1, 6), wide=st.floats(-3, 3))
def test_thompson_chances_are_those_of_the_draws(seed: int, arms: int, wide: float) -> None:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(1, arms))
    spread = np.exp(rng.uniform(-2, 2, size=(1, arms)) + wide)
    chances = thompson(mean, spread)[0]
    draws = rng.normal(mean, spread, size=(20_000, arms)).argmax(axis=1)
    shares = np.bincount(draws, minlength=arms) / len(draws)
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(shares - chances).max() < 5 * 0.5 / np.sqrt(len(draws))


def test_thompson_of_two_arms_is_the_normal_distribution() -> None:
    from scipy.stats import norm

    for lead, one, other in product([0.0, 0.1, 2.0, -7.0], [1e-4, 0.3, 1.0], [1e-3, 5.0]):
        chances = thompson(np.array([[lead, 0.0]]), np.array([[one, other]]))[0]
        assert chances[0] == pytest.approx(norm.cdf(lead / np.hypot(one, other)), abs=1e-6)


def test_every_arm_keeps_a_chance_while_the_budget_lasts() -> None:
    policy, x = learner(explore=0.3, control=0.1), separable(64, seed=3).inputs
    least = policy.distribution(x).min(axis=1)
    policy._state.budget = Budget(0.05, earned=100.0)
    assert least.min() == 0  # nothing earned yet, so not every arm may be tried
    assert (policy.distribution(x).min(axis=1) > 0.9 * 0.3 / 3 - 1e-9).all()


def test_the_best_fixed_arm_keeps_its_share() -> None:
    policy = learner(control=0.1)
    best = policy.arms.index(policy.status.best_fixed)
    probs = policy.distribution(separable(64, seed=3).inputs)
    assert (probs[:, best] >= 0.1).all()
    assert probs[:, best].min() == pytest.approx(0.1 + 0.9 * 0.005 / 3, abs=1e-3)


def test_a_draw_tells_what_it_was_drawn_from() -> None:
    policy, x = learner(), separable(1, seed=5).inputs[0]
    found = policy.choose(x, np.random.default_rng(0))
    policy.update(x, found.arm, 5.0, found.propensity)
    assert found.probabilities[found.index] == found.propensity
    assert policy.choose(x).probabilities is None


# -- learning -------------------------------------------------------------------------------------


def test_what_was_learned_offline_is_where_it_begins() -> None:
    policy, test = learner(), separable(256, seed=1)
    value = policies.value(policy, test, greedy=True).mean
    offline = policies.fit("regression", separable()).policy
    assert value > 0.95 * policies.value(offline, test, greedy=True).mean


def test_an_arm_that_turns_bad_is_left_and_found_again() -> None:
    data, rng = separable(512, seed=2), np.random.default_rng(0)
    policy = learner()
    broken = policy.arms.index(policy.status.best_fixed)
    rewards = data.rewards.copy()
    rewards[:, broken] -= 1.0
    bad = replace(data, rewards=rewards)
    serve(policy, data, rng.integers(512, size=200), rng)
    assert sum(policy.status.drifts.values()) == 0
    serve(policy, bad, rng.integers(512, size=300), rng)
    assert policy.status.drifts[ARMS[broken]] >= 1
    assert policy.status.best_fixed != ARMS[broken]
    assert policy.distribution(data.inputs)[:, broken].mean() < 0.1
    for row in rng.integers(512, size=300):  # somebody else finds that it works again
        policy.update(data.inputs[row], ARMS[broken], data.rewards[row, broken], own=False)
    assert policy.distribution(data.inputs)[:, broken].mean() > 0.2


def test_a_failed_arm_earned_the_worst() -> None:
    one, two, x = learner(), learner(), separable(1).inputs[0]
    one.update(x, "small", float("nan"), 0.5)
    two.update(x, "small", float(separable().rewards.min()), 0.5)
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arm": "huge"}, "unknown arm 'huge'"),
        ({"reward": float("inf")}, "reward is infinite"),
        ({"propensity": 0.0}, r"in \(0, 1\], not 0"),
        ({"x": np.zeros(3, np.float32)}, "width 8"),
        ({"x": np.zeros((2, 8), np.float32)}, "one answer at a time"),
    ],
)
def test_bad_answers_are_refused_and_change_nothing(change: dict[str, Any], says: str) -> None:
    policy = learner()
    before = policy.fingerprint
    given_ = {"x": np.zeros(8, np.float32), "arm": "small", "reward": 1.0, "propensity": 0.5}
    with pytest.raises(DraftpickError, match=says):
        policy.update(**(given_ | change))
    assert policy.fingerprint == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prior": 0}, "prior must be above 0"),
        ({"prior": 2.0, "kept": 3.0}, "cannot be kept"),
        ({"control": 0.0}, "control must be above 0 and below 1"),
        ({"budget": 1.5}, r"budget must be in \[0, 1\]"),
        ({"width": -1.0}, "width must be 0 or more"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        learner(**options)


def test_what_was_learned_is_saved_and_goes_on(tmp_path: Path) -> None:
    data = separable(64, seed=4)
    policy = learner()
    serve(policy, data, range(40), np.random.default_rng(0))
    again = policies.load(policy.save(tmp_path / "policy"))
    assert (again.fingerprint, again.status) == (policy.fingerprint, policy.status)
    for one in (policy, again):
        serve(one, data, range(40, 64), np.random.default_rng(1))
    assert again.fingerprint == policy.fingerprint


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    data, policy = separable(64, seed=4), learner()

    def work(seed: int) -> None:
        serve(policy, data, range(50), np.random.default_rng(seed))
        policy.save(tmp_path / "policy")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert policy.status.requests == 300
    assert 50 <= policies.load(tmp_path / "policy").status.requests <= 300


# -- what holds it back ---------------------------------------------------------------------------


def misled(seed: int) -> tuple[RewardTable, RewardTable]:
    """A table that promises much of two arms, and the world, in which they are poor."""
    data = separable(256, seed=seed)
    rng = np.random.default_rng(seed)
    promised = np.array([0.9, 1.0, 1.0]) + 0.1 * rng.normal(size=(256, 3))
    real = np.array([0.9, 0.6, 0.6]) + 0.1 * rng.normal(size=(256, 3))
    promised[:, 0] += 0.2
    real[:, 0] += 0.2
    return table(data.embeddings, promised), table(data.embeddings, real)


@pytest.mark.property
@pytest.mark.parametrize("budget", [0.02, 0.1])
def test_no_more_than_the_budget_is_lost(budget: float) -> None:
    """Two arms that look nearly as good as the best fixed one, and are not. At any moment, and but
    for the last request, as one answer may be worse than it was ever thought to be."""
    for seed in range(4 if FULL else 1):
        promised, real = misled(seed)
        policy = learner(promised, budget=budget, prior=20.0, kept=1.0, width=3.0)
        rng = np.random.default_rng(seed)
        rows = rng.integers(256, size=400)
        earned, fixed = serve(policy, real, rows, rng), real.rewards[rows, 0]
        spent = (fixed - earned).cumsum() - budget * fixed.cumsum()
        assert spent.max() < fixed.max(), (seed, spent.max())
        assert (earned != fixed).any()  # it did try


def test_what_was_gained_may_be_spent_again() -> None:
    low, high = np.array([[0.9, 0.5]]), np.array([[1.1, 1.5]])
    budget = Budget(0.1)
    assert not budget.allowed(low, high, 0)[0, 1]
    for _ in range(6):
        budget = budget.add(1.0, 0.9, 1.1, True, 1.0)
    assert budget.earned - budget.lost == pytest.approx(0.54)
    assert budget.allowed(low, high, 0)[0, 1]  # 1.1 - 0.5 is within 0.54 + 0.09
    spent = budget.add(0.5, 0.9, 1.1, False, 1.0)
    assert not spent.allowed(low, high, 0)[0, 1]
    assert spent.allowed(low, high, 0)[0, 0]
    assert spent.add(1.9, 0.9, 1.1, False, 1.0).allowed(low, high, 0)[0, 1]


def gains(rng: np.random.Generator, runs: int, rows: int, better: float) -> np.ndarray:
    """[runs, rows] of a control share of 0.1, as `Control.add` computes them."""
    of_best = rng.random((runs, rows)) < 0.1
    noise = np.clip(rng.normal(0.0, 1.0, (runs, rows)) + better * ~of_best, -3, 3)
    return np.where(of_best, noise - noise / 0.1, noise)


def test_the_bound_is_another_packages() -> None:
    """`poly_stitching_bound` of the package `expectation` 0.6.1, which needs Python 3.12."""
    sums = np.array([1.0, 27.0**2, 1e4, 1e6])
    theirs = [290.49069268, 290.49069268, 621.3988376, 4194.74613407]
    np.testing.assert_allclose(stitched(sums, 27.0, 0.05, 27.0**2), theirs, rtol=1e-9)


def test_looking_all_the_time_does_not_break_the_level() -> None:
    """1,000 policies that are exactly as good as the best fixed arm, watched for 2,000 requests:
    at a level of 0.2, no more than 200 may ever be called worse."""
    found = gains(np.random.default_rng(0), 1000, 2000, 0.0)
    sums, squares = found.cumsum(axis=1), np.square(found).cumsum(axis=1)
    radius = stitched(squares, 27.0, 0.2, 27.0**2)
    wrongly = (sums + radius < 0).any(axis=1).sum()
    assert wrongly <= 200
    naive = 1.2816 * np.sqrt(squares)  # the level of one look, 0.1 on this side
    assert (sums + naive < 0)[:, 20:].any(axis=1).sum() > 300


def test_the_simulation_is_of_what_control_computes() -> None:
    control, rng = Control(0.1, 3.0), np.random.default_rng(1)
    total = 0.0
    for _ in range(200):
        of_best, reward = bool(rng.random() < 0.1), float(rng.normal())
        control = control.add(reward, 0.0, of_best, 0.1 if of_best else 0.9)
        e = float(np.clip(reward, -3, 3))
        total += e - e / 0.1 if of_best else e
    assert control.total == pytest.approx(total)
    assert control.radius == pytest.approx(
        float(stitched(control.squares, 27.0, 0.05 / 2, 27.0**2))
    )


def test_the_gain_is_what_the_policy_earns_more() -> None:
    """Whatever is expected of the best fixed arm: here far too much."""
    rng, control = np.random.default_rng(0), Control(0.2, 10.0)
    for _ in range(20_000):
        of_best = bool(rng.random() < 0.2)
        reward = rng.normal(1.0 if of_best else 1.5, 0.1)
        control = control.add(float(reward), 2.0, of_best, 0.2 if of_best else 0.8)
    mean, low, high = control.gain
    assert mean == pytest.approx(0.8 * 0.5, abs=0.05)
    assert low < mean < high
    assert not control.worse


def test_a_worse_policy_is_switched_back_and_a_change_gives_it_another_try() -> None:
    """The budget is off; a policy whose beliefs never move goes on with two poor arms."""
    promised, real = misled(0)
    tempting = replace(promised, rewards=promised.rewards + np.array([0.0, 0.1, 0.1]))
    policy = learner(tempting, budget=1.0, prior=1e9, control=0.2, components=0)
    policy._state.best = 0
    policy._best_fixed = lambda: 0
    policy._state.detectors = [_Deaf() for _ in ARMS]
    rng = np.random.default_rng(0)
    for _ in range(60):
        serve(policy, real, rng.integers(256, size=50), rng)
        if policy.status.switched_back:
            break
    assert policy.status.switched_back
    assert policy.status.gain_high < 0
    np.testing.assert_array_equal(policy.distribution(real.inputs)[:, 0], 1.0)
    policy._state.detectors = [DriftDetector(MIN_REWARDS, 100.0, 0.0) for _ in ARMS]
    serve(policy, real, [0], rng)
    assert not policy.status.switched_back
    assert policy._state.control.tests == 2


class _Deaf(DriftDetector):
    def add(self, surprise: float) -> bool:
        return False


# -- drift ----------------------------------------------------------------------------------------


@pytest.mark.property
def test_a_detector_is_silent_until_something_changes() -> None:
    """Arms of 2,000 rewards; then each falls by 1.5 standard deviations."""
    rng, false, delays, arms = np.random.default_rng(0), 0, [], 100 if FULL else 20
    for _ in range(arms):
        detector = DriftDetector()
        false += sum(detector.add(float(one)) for one in rng.normal(size=2000))
        delays.append(next(i for i in range(200) if detector.add(float(rng.normal(-1.5)))))
    assert false <= arms // 20
    assert np.mean(delays) < 15


def test_a_detector_without_enough_rows_says_so() -> None:
    detector = DriftDetector()
    for _ in range(MIN_REWARDS - 1):
        detector.add(1.0)
    with pytest.raises(
        PolicyError, match=f"needs {MIN_REWARDS} rewards of an arm.*has seen {MIN_REWARDS - 1}"
    ):
        detector.evidence()
    detector.add(1.0)
    assert 0 < detector.evidence() < 1
    with pytest.raises(PolicyError, match="has seen 0"):
        learner().drift_evidence("small")
    with pytest.raises(NoSuchName, match="unknown arm"):
        learner().drift_evidence("huge")
