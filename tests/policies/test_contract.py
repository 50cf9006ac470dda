"""One contract, held by every policy that ships."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from policy_tables import ARMS, OPTIONS, data_for, table, tiny
from strangers import registered

import policies
from decoders.common.errors import NoSuchName
from policies import POLICIES, Policy, PolicyError
from policies.base import from_rewards


@pytest.fixture(params=[*sorted(POLICIES), "stranger"])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A stranger's policy keeps the contract too."""
    if request.param != "stranger":
        yield request.param
        return
    with registered("centroid"):
        yield "centroid"


def fitted(name: str, seed: int = 0, failures: bool = False) -> Any:
    return policies.fit(
        name, data_for(name, failures=failures), None, seed, **OPTIONS.get(name, {})
    ).policy


def some_inputs(policy: Policy, n: int, seed: int) -> np.ndarray:
    """[n, w], of the width that the policy reads; 5 for one that takes any."""
    width = policy.origin.width or 5
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def test_every_policy_has_options_here() -> None:
    assert set(OPTIONS) == set(POLICIES)


@pytest.mark.parametrize("failures", [False, True])
def test_distribution_is_a_distribution(name: str, failures: bool) -> None:
    policy = fitted(name, failures=failures)
    assert isinstance(policy, Policy)
    assert policy.origin.table_digest in (data_for(name, failures=failures).digest, "")
    x = some_inputs(policy, 7, seed=1)
    probs = policy.distribution(x)
    assert probs.shape == (7, 3)
    assert probs.dtype == np.float64
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)


def test_choosing(name: str) -> None:
    policy = fitted(name)
    x = some_inputs(policy, 1, seed=1)[0]
    probs = policy.distribution(x)[0]
    greedy = policy.choose(torch.tensor(x))
    assert (greedy.index, greedy.propensity) == (int(probs.argmax()), 1.0)
    assert greedy.arm == policy.arms[greedy.index]
    assert len(greedy.scores) == 3
    drawn = [policy.choose(x, np.random.default_rng(i)) for i in range(400)]
    shares = np.bincount([d.index for d in drawn], minlength=3) / 400
    assert np.abs(shares - probs).max() < 0.1
    assert all(d.propensity == probs[d.index] for d in drawn)


def test_same_seed_same_policy(name: str) -> None:
    one, two = fitted(name, 3), fitted(name, 3)
    x = some_inputs(one, 12, seed=0)
    np.testing.assert_array_equal(one.distribution(x), two.distribution(x))


def test_round_trip(name: str, tmp_path: Path) -> None:
    policy = fitted(name)
    again = policies.load(policy.save(tmp_path / "policy"))
    assert again.origin == policy.origin
    assert again.origin.table_digest in (data_for(name).digest, "")
    x = some_inputs(policy, 9, seed=2)
    np.testing.assert_array_equal(again.scores(x), policy.scores(x))
    np.testing.assert_array_equal(again.distribution(x), policy.distribution(x))
    assert again.fingerprint == policy.fingerprint and len(policy.fingerprint) == 16
    other = policies.fit(name, data_for(name, seed=1), None, 0, **OPTIONS.get(name, {})).policy
    assert other.fingerprint != policy.fingerprint


@examples(15, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 9),
    d=st.integers(1, 4),
    size=st.integers(1, 4),
    name=st.sampled_from(["reinforce", "exact", "knn", "regression", "best-fixed", "uniform"]),
    temperature=st.floats(0, 10),
)
def test_any_table_gives_distributions_that_survive_storage(
    seed: int, n: int, d: int, size: int, name: str, temperature: float, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    rewards = rng.normal(scale=100, size=(n, size))
    rewards[rng.random((n, size)) < 0.2] = np.nan
    rewards[0, 0] = 1.0
    arms = [f"arm {i}" for i in range(size)]
    data = table(rng.normal(size=(n, d)).astype(np.float32), rewards, arms)
    options = dict(OPTIONS[name])
    if name in ("knn", "regression"):
        options["temperature"] = temperature
    policy = policies.fit(name, data, None, 0, **options).policy
    probs = policy.distribution(data.embeddings)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    again = policies.load(policy.save(tmp_path / "any"))
    np.testing.assert_array_equal(again.distribution(data.embeddings), probs)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros(4, np.float32), "width 5"),
        (np.full(5, np.nan, np.float32), "nan or infinity"),
        (np.zeros((2, 5), np.float32), "one query at a time"),
    ],
)
def test_bad_queries_are_refused(x: np.ndarray, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        fitted("exact").choose(x)


def test_unknown_names_and_options() -> None:
    with pytest.raises(NoSuchName, match="unknown policy 'nope'; known: best-fixed, binned"):
        policies.fit("nope", tiny())
    with pytest.raises(PolicyError, match="no option 'epochs'; it takes: k, metric"):
        policies.fit("knn", tiny(), epochs=3)


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        ("knn", "k", "abc", "k must be a whole number, not 'abc'"),
        ("knn", "k", 2.7, "k must be a whole number, not 2.7"),
        ("reinforce", "epochs", True, "epochs must be a whole number, not True"),
        ("knn", "standardise", 1, "standardise must be true or false, not 1"),
        ("thompson", "memory", "x", "memory must be a number, not 'x'"),
        ("regression", "ridge", "auto", "ridge must be above 0, not auto"),
        ("reinforce", "lr", 1e30, "training diverged in epoch"),
    ],
)
def test_options_that_cannot_be_are_named(name: str, option: str, value: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(says)):
        policies.fit(name, tiny(), **{option: value})
    with pytest.raises(NoSuchName, match="unknown baseline"):
        policies.fit("reinforce", tiny(), baseline="median")
    with pytest.raises(PolicyError, match="epochs must be at least 1"):
        policies.fit("exact", tiny(), epochs=0)
    with pytest.raises(NoSuchName, match="unknown arm 'x'"):
        policies.fit("fixed", tiny(), arm="x")
    other = table(tiny().embeddings, tiny().rewards, ["a", "b", "c"])
    with pytest.raises(PolicyError, match="differ in arms"):
        policies.fit("uniform", tiny(), other)


def test_compatibility_names_both_sides() -> None:
    policy = fitted("exact")
    policies.check_compatible(policy, [*ARMS, "one more"], "toy/5", "arms-1")
    with pytest.raises(
        PolicyError, match=r"trained for the arms autoregressive, small, ngram.*a, b"
    ):
        policies.check_compatible(policy, ["a", "b"], "toy/5")
    with pytest.raises(PolicyError, match="toy/5, but the embedder here is other/5"):
        policies.check_compatible(policy, ARMS, "other/5")
    with pytest.raises(PolicyError, match=r"fingerprint arms-1.*arms-2"):
        policies.check_compatible(policy, ARMS, "toy/5", "arms-2")
    policies.check_compatible(policies.uniform_policy(ARMS), ARMS, "whatever")


def test_choosing_is_fast() -> None:
    """The real width, 576: well under a millisecond, in the best of many on a busy machine."""
    rng = np.random.default_rng(0)
    data = table(rng.normal(size=(8, 576)).astype(np.float32), rng.random((8, 3)))
    policy = policies.fit("reinforce", data, epochs=1).policy
    x = data.embeddings[0]
    times = []
    for _ in range(50):
        began = time.perf_counter()
        policy.choose(x)
        times.append(time.perf_counter() - began)
    assert min(times) < 2e-3


def test_a_temperature_next_to_nothing_is_nearly_the_best_alone() -> None:
    made = from_rewards(np.array([[1.0, 3.0, 3.0], [-2.0, -5.0, -9.0]]), 5e-324)
    np.testing.assert_array_equal(made, [[0, 0.5, 0.5], [1, 0, 0]])
