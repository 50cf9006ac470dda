"""The two calibrations: against slow formulas, and by enumerating every calibration set."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import PolicyError
from policies.risk_control.bounds import Risk, hoeffding_bentkus

ALPHAS = st.floats(0.005, 0.9)


@pytest.mark.parametrize("n", [60, 400])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_mapie_selects_the_same_thresholds(n: int, alpha: float) -> None:
    """Among 20, of which the first loses nothing; losses need not rise from each to the next."""
    others = pytest.importorskip("mapie.risk_control.methods", reason="needs the extra dev")
    from mapie.risk_control import control_fwer

    rng, counts = np.random.default_rng(n), set()
    for power in np.geomspace(1, 100, 40):
        losses = np.linspace(0, 1, 20) * rng.random((n, 20)) ** power
        means, ours = losses.mean(axis=0), Risk(alpha, 0.9)
        p_values = others.compute_hoeffding_bentkus_p_value(means, n, alpha)[:, 0]
        np.testing.assert_allclose(hoeffding_bentkus(means, n, alpha), np.minimum(p_values, 1))
        tested = control_fwer(p_values, 1 - 0.9, "fixed_sequence")
        assert tested.tolist() == list(range(ours.controlled(means, n)))
        rising, expected = np.maximum.accumulate(losses, axis=1), Risk(alpha, None)
        np.testing.assert_array_equal(expected.comparable(losses), rising)
        np.testing.assert_array_equal(ours.comparable(losses), losses)
        _, bounds = others.get_r_hat_plus(rising, np.arange(20), "crc", None, None, None)
        (last,) = others.find_best_predict_param(np.arange(20), bounds, np.array([alpha]))
        assert last == expected.controlled(rising.mean(axis=0), n) - 1
        counts |= {len(tested), last + 1}
    assert len(counts) > 8


@given(n=st.integers(1, 80), alpha=ALPHAS, delta=st.floats(0.01, 0.5))
def test_a_violated_bound_is_rarely_accepted(n: int, alpha: float, delta: float) -> None:
    """P(p <= delta) <= delta, over all samples of losses 0 and 1 whose expectation is alpha."""
    k = np.arange(n + 1)
    chances = np.array([math.comb(n, i) * alpha**i * (1 - alpha) ** (n - i) for i in k])
    believed = hoeffding_bentkus(k / n, n, alpha) <= delta
    assert chances[believed].sum() <= delta + 1e-12


def test_how_many_queries_are_needed() -> None:
    assert Risk(0.05, 0.95).least_groups == 59
    assert Risk(0.05, 0.9).least_groups == 45
    assert Risk(0.05, None).least_groups == 19


@given(alpha=ALPHAS, confidence=st.none() | st.floats(0.5, 0.99))
def test_one_query_fewer_controls_nothing(alpha: float, confidence: float | None) -> None:
    risk = Risk(alpha, confidence)
    nothing_lost, n = np.zeros(1), risk.least_groups
    assert n >= 1
    assert risk.controlled(nothing_lost, n) == 1
    if n > 1:
        assert risk.controlled(nothing_lost, n - 1) == 0


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_steps_end_at_the_first_that_fails(confidence: float | None) -> None:
    risk = Risk(0.1, confidence)
    means = np.array([[0.0, 0.9, 0.0], [0.9, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert risk.controlled(means, 1000).tolist() == [1, 0, 3]


# Kinds of query by step: a kind may lose less at a later step, where another arm is the fastest.
WORLD = np.array([[0.0, 0.1, 0.0, 0.6], [0.0, 0.0, 0.4, 0.9], [0.1, 0.3, 0.2, 1.0]])
CHANCES = np.array([0.5, 0.3, 0.2])


def samples(n: int) -> list[tuple[np.ndarray, float]]:
    """Every sample of n queries as counts of kinds, and its chance."""
    found = []
    for counts in itertools.product(range(n + 1), repeat=3):
        if sum(counts) == n:
            ways = math.factorial(n) / math.prod(math.factorial(c) for c in counts)
            found.append((np.array(counts), ways * float(np.prod(CHANCES ** np.array(counts)))))
    return found


@pytest.mark.parametrize("alpha", [0.1, 0.15, 0.2, 0.3])
@pytest.mark.parametrize("n", [5, 12])
def test_the_expected_loss_over_every_calibration(n: int, alpha: float) -> None:
    risk, truth = Risk(alpha, None), np.concatenate([[0.0], CHANCES @ WORLD])
    assert sum(chance for _, chance in samples(n)) == pytest.approx(1)
    expected = sum(
        chance * truth[risk.controlled(counts / n @ risk.comparable(WORLD), n)]
        for counts, chance in samples(n)
    )
    assert expected <= alpha


@pytest.mark.parametrize("alpha", [0.1, 0.15, 0.2, 0.3])
def test_how_often_it_is_broken_over_every_calibration(alpha: float) -> None:
    risk, truth = Risk(alpha, 0.8), np.concatenate([[0.0], CHANCES @ WORLD])
    violated = sum(
        chance
        for counts, chance in samples(30)
        if truth[risk.controlled(counts / 30 @ risk.comparable(WORLD), 30)] > alpha
    )
    assert violated <= 0.2


@pytest.mark.parametrize("given", [(0.0, 0.9), (1.0, 0.9), (-0.1, None), (0.1, 0.0), (0.1, 1.0)])
def test_numbers_out_of_range(given: tuple[float, float | None]) -> None:
    with pytest.raises(PolicyError, match="above 0 and below 1"):
        Risk(*given)
