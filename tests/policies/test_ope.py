"""Off-policy estimates from simulated logs against the exact value on the full table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from policy_tables import ARMS, separable, tiny

import policies
from policies import PolicyError
from policies.base import softmax
from policies.ope.estimators import (
    DirectMethod,
    DoublyRobust,
    InverseProbabilityWeighting,
    Log,
    SelfNormalizedInverseProbabilityWeighting,
    SwitchDoublyRobust,
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
    assert never.estimate(log, PROBS, ROUGH) == DirectMethod().estimate(log, PROBS, ROUGH)
    assert always.estimate(log, PROBS, ROUGH) == DoublyRobust().estimate(log, PROBS, ROUGH)
    assert DoublyRobust().estimate(log, PROBS, DATA.rewards).value == pytest.approx(TRUTH)


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
