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
    Estimate,
    Log,
    dm,
    dr,
    ips,
    simulate,
    snips,
    switch_dr,
)

DATA = separable(400, seed=0)
RNG = np.random.default_rng(1)
TARGET = softmax(RNG.normal(size=DATA.rewards.shape) + 2 * DATA.rewards)
TRUTH = float((TARGET * DATA.rewards).sum(axis=1).mean())
ROUGH = DATA.rewards + RNG.normal(0.1, 0.1, size=DATA.rewards.shape)  # biased predictions
BEHAVIOUR = policies.fit("exact", DATA, None, 0, epochs=1, hidden=8).policy


def estimates(tries: int = 200) -> dict[str, list[Estimate]]:
    found: dict[str, list[Estimate]] = {k: [] for k in ("ips", "snips", "dr", "switch")}
    for i in range(tries):
        log = simulate(BEHAVIOUR, DATA, np.random.default_rng(i))
        found["ips"].append(ips(log, TARGET))
        found["snips"].append(snips(log, TARGET))
        found["dr"].append(dr(log, TARGET, ROUGH))
        found["switch"].append(switch_dr(log, TARGET, ROUGH, 50.0))
    return found


def test_estimators_find_the_exact_value() -> None:
    spread = {}
    for name, tries in estimates().items():
        values = np.array([e.value for e in tries])
        spread[name] = values.std()
        assert abs(values.mean() - TRUTH) < 4 * values.std() / math.sqrt(len(values)), name
        # The logged actions vary, the queries do not: the error over rows is an upper bound.
        assert values.std() < 1.2 * np.mean([e.standard_error for e in tries])
    assert spread["dr"] < spread["ips"]
    assert spread["snips"] < spread["ips"]


def test_direct_method() -> None:
    assert dm(TARGET, DATA.rewards).value == pytest.approx(TRUTH)
    assert dm(TARGET, ROUGH).value == pytest.approx(TRUTH + 0.1, abs=0.02)


def test_switch_goes_from_direct_to_doubly_robust() -> None:
    log = simulate(BEHAVIOUR, DATA, np.random.default_rng(0))
    assert switch_dr(log, TARGET, ROUGH, 0.0) == dm(TARGET, ROUGH)
    assert switch_dr(log, TARGET, ROUGH, math.inf) == dr(log, TARGET, ROUGH)
    assert dr(log, TARGET, DATA.rewards).value == pytest.approx(TRUTH)


def test_on_policy_ips_is_the_mean() -> None:
    log = simulate(BEHAVIOUR, DATA, np.random.default_rng(0))
    own = BEHAVIOUR.distribution(DATA.embeddings)
    assert ips(log, own).value == pytest.approx(float(log.rewards.mean()))
    assert snips(log, own).value == pytest.approx(float(log.rewards.mean()))


def test_simulated_logs_skip_failures() -> None:
    data = tiny(failures=True)
    log = simulate(policies.uniform_policy(ARMS), data, np.random.default_rng(0))
    assert 0 < len(log.actions) < len(data)
    assert np.isfinite(log.rewards).all()


def test_bad_logs_are_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PolicyError, match="propensity"):
        Log(np.zeros(1, np.intp), one, one * 0)
    with pytest.raises(PolicyError, match="finite"):
        Log(np.zeros(1, np.intp), one * np.nan, one)
    log = Log(np.zeros(1, np.intp), one, one)
    with pytest.raises(PolicyError, match="more exploration"):
        snips(log, np.array([[0.0, 1.0]]))
    with pytest.raises(PolicyError, match="one row"):
        ips(log, np.ones((2, 2)))
    with pytest.raises(PolicyError, match="tau"):
        switch_dr(log, np.ones((1, 1)), np.ones((1, 1)), -1.0)
