"""Off-policy estimates from simulated logs against the exact value on the full table."""

import math
from collections import Counter
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from effort import FULL
from policy_tables import ARMS, separable, table, tiny
from scipy.stats import binom

import policies
from policies import PolicyError, RewardTable
from policies.base import softmax
from policies.ope.comparison import LEAST_ROWS, Comparison, compare, cross_fitted, on_policy
from policies.ope.estimators import (
    DirectMethod,
    DoublyRobust,
    InverseProbabilityWeighting,
    Log,
    SelfNormalizedInverseProbabilityWeighting,
    SwitchDoublyRobust,
    effective_rows,
    simulate,
)

DATA = separable(400, seed=0)
RNG = np.random.default_rng(1)
PROBS = softmax(RNG.normal(size=DATA.rewards.shape) + 2 * DATA.rewards)
TRUTH = float((PROBS * DATA.rewards).sum(axis=1).mean())
ROUGH = DATA.rewards + RNG.normal(0.1, 0.1, size=DATA.rewards.shape)  # biased predictions
IPW, SNIPW = InverseProbabilityWeighting(), SelfNormalizedInverseProbabilityWeighting()
BEHAVIOUR = policies.fit("exact", DATA, None, 0, epochs=1, hidden=8).policy


def test_direct_method() -> None:
    log = simulate(BEHAVIOUR, DATA, np.random.default_rng(0))
    assert DirectMethod().estimate(log, PROBS, DATA.rewards).value == pytest.approx(TRUTH)
    assert DirectMethod().estimate(log, PROBS, ROUGH).value == pytest.approx(TRUTH + 0.1, abs=0.02)


def test_switch_goes_from_direct_to_doubly_robust() -> None:
    log = simulate(BEHAVIOUR, DATA, np.random.default_rng(0))
    never, always = SwitchDoublyRobust(0.0), SwitchDoublyRobust(math.inf)
    for one, other in ((never, DirectMethod()), (always, DoublyRobust())):
        made, expected = (each.estimate(log, PROBS, ROUGH) for each in (one, other))
        assert astuple(made) == pytest.approx(astuple(expected), rel=0, abs=0, nan_ok=True)
    assert DoublyRobust().estimate(log, PROBS, DATA.rewards).value == pytest.approx(TRUTH)


@pytest.mark.parametrize("off", [0.0, 1.0])  # the predictions
def test_requests_that_took_an_arm_without_rewards_count(off: float) -> None:
    """In exact proportion: of two kinds of request, worth 1 and 11, the second takes an arm whose
    reward is never known nine times in ten, the first once."""
    second = np.repeat([0, 1], [90, 10])
    actions = np.concatenate([np.repeat([0, 1], 45), np.repeat([0, 1], 5)])
    known, worth = np.where(second, 0.1, 0.9), 10.0 * second[:, None] + [1.0, 0.0, 0.0]
    log = Log(actions, worth[np.arange(100), actions], known / 2, known=known)
    first = np.tile([1.0, 0.0, 0.0], (100, 1))
    values = only(log, first, worth + off * (1 + second[:, None]), tau=math.inf).values
    direct = {"dm": 6.0 + 1.5 * off}
    assert {name: one.value for name, one in values.items()} == pytest.approx(
        dict.fromkeys(CORRECTED, 6.0) | direct
    )


def test_failures_in_simulated_logs_earn_the_worst_reward() -> None:
    data = tiny(failures=True)
    log = simulate(policies.uniform_policy(ARMS), data, np.random.default_rng(0))
    assert len(log.actions) == len(data)
    failed = np.isnan(data.rewards[np.arange(len(data)), log.actions])
    assert failed.any() and (log.rewards[failed] == log.rewards.min()).all()


def test_bad_logs_are_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PolicyError, match="propensity"):
        Log(np.zeros(1, np.intp), one, one * 0)
    with pytest.raises(PolicyError, match="finite"):
        Log(np.zeros(1, np.intp), one * np.nan, one)
    log = Log(np.zeros(1, np.intp), one, one)
    with pytest.raises(PolicyError, match="more exploration"):
        SNIPW.estimate(log, np.array([[0.0, 1.0]]))
    with pytest.raises(PolicyError, match="one row"):
        IPW.estimate(log, np.ones((2, 2)))
    with pytest.raises(PolicyError, match="tau"):
        SwitchDoublyRobust(-1.0)
    with pytest.raises(PolicyError, match="predictions"):
        DirectMethod().estimate(log, np.ones((1, 1)))


# -- how often intervals hold the exact value ------------------------------------------------------


LOGS, ROWS, CONFIDENCE = 300 if FULL else 100, 250, 0.9
CORRECTED = ("ips", "snips", "dr", "switch-dr")


def only(log: Log, probs: np.ndarray, *more: np.ndarray, **options: Any) -> Comparison:
    return compare(log, {"only": probs}, *more, **options)["only"]


@dataclass
class World:
    """A large table, the probabilities of a policy that logs and of one that is judged."""

    table: RewardTable
    logger: np.ndarray  # [N, A]
    probs: np.ndarray  # [N, A]

    @property
    def truth(self) -> float:
        return float((self.probs * self.table.rewards).sum(axis=1).mean())

    def log(
        self, rng: np.random.Generator, rows: int = ROWS, missing: float = 0.0
    ) -> tuple[Log, np.ndarray]:
        """(log, its rows of the table): queries drawn from all, an arm each. missing: the share of
        the first arm's rewards that is not known."""
        index = rng.integers(len(self.table), size=rows)
        chances = self.logger[index]
        actions = (chances.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
        taken = np.arange(rows), actions
        kept = (actions > 0) | (rng.random(rows) >= missing)
        shares = np.where(actions == 0, kept[actions == 0].mean(), 1.0)
        log = Log(actions[kept], self.table.rewards[index][taken][kept], chances[taken][kept],
                  shares=shares[kept])  # fmt: skip
        return log, index[kept]


@cache
def world(linear: bool) -> World:
    """Rewards are linear in the inputs, or not at all as a ridge regression sees them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 4)).astype(np.float32)
    signal = x[:, :3] if linear else np.cos(2 * x[:, :3]) + x[:, :3] * x[:, [1, 2, 0]]
    rewards = 3 + signal + rng.normal(scale=0.3, size=(4000, 3))
    known = table(x, rewards)
    logger = policies.fit("knn", known, temperature=1.2).policy
    return World(known, logger.distribution(x), softmax(0.8 * signal))


@cache
def runs(linear: bool, missing: float = 0.0) -> list[Comparison]:
    made, found = world(linear), []
    for seed in range(LOGS):
        log, index = made.log(np.random.default_rng(seed), missing=missing)
        predicted = cross_fitted(made.table.inputs[index], log, 3, seed=seed)
        found.append(
            only(log, made.probs[index], predicted, made.logger[index], tau=5.0, resamples=200,
                 confidence=CONFIDENCE, seed=seed)
        )  # fmt: skip
    return found


def hits(found: list[Comparison], truth: float, what: str = "values") -> Counter[str]:
    """estimator -> intervals that hold the truth."""
    return Counter(
        name for each in found for name, value in getattr(each, what).items()
        if value.low <= truth <= value.high
    )  # fmt: skip


def width(found: list[Comparison], name: str, what: str = "values") -> float:
    each = [getattr(one, what)[name] for one in found]
    return float(np.mean([one.high - one.low for one in each]))


# Percentiles of resamples are a little narrow for few rows. True coverages of 87 % to 92 % pass in
# 998 runs of 1000; in `make slow` the test surely fails for one below 75 % or above 99 %.
LEAST, MOST = binom.ppf(0.001, LOGS, CONFIDENCE - 0.03), binom.ppf(0.999, LOGS, CONFIDENCE + 0.02)


@pytest.mark.property  # of random logs: three times as many in `make slow`
@pytest.mark.parametrize("missing", [0.0, 0.5])  # of an arm's rewards
def test_intervals_hold_the_truth_as_often_as_they_say(missing: float) -> None:
    """Of values and of gains."""
    made, found = world(linear=True), runs(linear=True, missing=missing)
    logged = float((made.logger * made.table.rewards).sum(axis=1).mean())
    counted = hits(found, made.truth), hits(found, made.truth - logged, "gains")
    assert all(LEAST <= each[name] <= MOST for each in counted for name in CORRECTED), counted
    if not missing:
        assert width(found, "snips") < width(found, "ips")
        for what in ("values", "gains"):
            assert width(found, "dr", what) < 0.7 * width(found, "ips", what)


@pytest.mark.property
def test_a_wrong_model_spoils_the_direct_method_alone() -> None:
    made, found = world(linear=False), runs(linear=False)
    counted = hits(found, made.truth)
    assert all(LEAST <= counted[name] <= MOST for name in ("ips", "snips", "dr")), counted
    assert width(found, "dr") < width(found, "ips")
    off = {name: np.mean([each.values[name].value for each in found]) - made.truth
           for name in ("dm", "dr")}  # fmt: skip
    assert abs(off["dr"]) < 0.03 < 0.05 < abs(off["dm"])


def test_wrong_propensities_are_what_the_count_would_show() -> None:
    """Lines that claim the uniform chance: with a wrong model nothing is right any more."""
    made = world(linear=False)
    found = []
    for seed in range(100):
        log, index = made.log(np.random.default_rng(seed))
        claimed = replace(log, propensities=np.full(ROWS, 1 / 3))
        predicted = cross_fitted(made.table.inputs[index], claimed, 3, seed=seed)
        found.append(only(claimed, made.probs[index], predicted, resamples=200, seed=seed))
    counted = hits(found, made.truth)
    assert max(counted.values(), default=0) < 70, counted


def test_rows_of_one_group_are_one_row() -> None:
    """Every row ten times over, as a group: nothing is learnt from the copies."""
    made = world(linear=True)
    log, index = made.log(np.random.default_rng(0), 60)
    ten = np.repeat(np.arange(60), 10)
    copies = Log(log.actions[ten], log.rewards[ten], log.propensities[ten], groups=ten)
    once, often = (only(log, made.probs[index]), only(copies, made.probs[index[ten]]))
    blind = only(replace(copies, groups=None), made.probs[index[ten]])
    for name in ("ips", "snips"):
        for figure in ("value", "standard_error", "low", "high"):
            same = pytest.approx(getattr(once.values[name], figure))
            assert getattr(often.values[name], figure) == same
        assert blind.values[name].standard_error < 0.4 * once.values[name].standard_error
        assert often.gains[name].low == pytest.approx(once.gains[name].low)


def test_effective_rows() -> None:
    even, one = np.full((4, 2), 0.5), np.array([[1.0, 0.0]] + [[0.0, 1.0]] * 3)
    log = Log(np.zeros(4, np.intp), np.ones(4), np.full(4, 0.5))
    assert effective_rows(log, even) == 4
    assert effective_rows(log, one) == 1
    assert effective_rows(log, np.array([[0.0, 1.0]] * 4)) == 0
    grouped = replace(log, groups=np.array([0, 0, 1, 1]))
    assert effective_rows(grouped, even) == 2


def test_predictions_are_of_rows_that_were_not_seen() -> None:
    """A reward that is noise alone is predicted by the other half's mean, never by itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 60)).astype(np.float32)  # enough inputs to learn any row by heart
    log = Log(np.zeros(40, np.intp), rng.normal(size=40), np.ones(40))
    predicted = cross_fitted(x, log, 2)
    assert abs(np.corrcoef(predicted[:, 0], log.rewards)[0, 1]) < 0.5
    assert np.abs(predicted).max() <= np.abs(log.rewards).max()
    assert np.ptp(predicted[:, 1]) < 0.5, "an arm that was never taken: the mean of all"


def test_arms_seldom_taken_are_predicted_by_their_mean() -> None:
    n = 4 * LEAST_ROWS
    actions = np.zeros(n, np.intp)
    actions[:4] = 1
    log = Log(actions, np.where(actions == 1, 5.0, 1.0), np.ones(n))
    predicted = cross_fitted(
        np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32), log, 2
    )
    assert predicted[:, 0] == pytest.approx(1.0, abs=0.5)
    assert (predicted[:, 1] > 2).all()
    with pytest.raises(PolicyError, match="independent rows"):
        cross_fitted(
            np.zeros((3, 0), np.float32),
            Log(*(np.ones(3, t) for t in (np.intp, float, float)), groups=np.zeros(3, np.intp)),
            2,
        )


def test_a_single_row_has_no_interval() -> None:
    one = on_policy(Log(np.zeros(1, np.intp), np.ones(1), np.ones(1)))
    assert one.value == 1.0 and np.isnan([one.low, one.high, one.standard_error]).all()
