"""The cost models against simulations of what they model, and against the paper's own table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.costs.theory import (
    TABLE_1,
    TABLE_1_ACCEPTANCE,
    TABLE_1_COST,
    acceptance_pgf,
    best_horizontal,
    best_length,
    best_vertical,
    horizontal,
    speculative,
    swi,
    vertical,
)
from decoders.records import DecodeResult
from router.theory.inputs import acceptance_of, from_costs

ROUNDS = 100_000
SHARE = st.floats(0, 0.99)
COST = st.floats(0, 1)


def right(rng: np.random.Generator, rates: list[float], rounds: int = ROUNDS) -> np.ndarray:
    """[rounds] drafted tokens accepted before the first rejection; a coin for each."""
    accept = rng.random((rounds, len(rates))) < np.array(rates)
    return np.cumprod(accept, axis=1).sum(1)


# -- formula against simulation -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "costs"),
    [
        ([0.9, 0.6, 0.6, 0.2], [0.2, 0.05, 0.05, 0.0]),
        ([0.5, 0.5, 0.9], [0.1, 0.1, 0.3]),
        ([0.0, 1.0], [0.1, 0.1]),
        ([], []),
    ],
)
def test_horizontal_is_the_mean_of_many_rounds(rates: list[float], costs: list[float]) -> None:
    tokens = 1 + right(np.random.default_rng(0), rates)
    found = tokens.mean() / (1 + sum(costs))
    assert horizontal(rates, costs) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize(
    ("acceptance", "inner", "verifications", "k"),
    [(0.8, 0.6, 3, 2), (0.5, 0.9, 2, 5), (0.9, 0.0, 4, 3), (0.7, 1.0, 1, 4), (0.7, 0.5, 2, 0)],
)
def test_vertical_is_the_mean_of_many_rounds(
    acceptance: float, inner: float, verifications: int, k: int
) -> None:
    """The two-level process itself: each verification gives the drafter's own token behind those it
    accepts; the target then accepts from the left and adds one."""
    rng = np.random.default_rng(1)
    drafted = sum(1 + right(rng, [inner] * k) for _ in range(verifications))  # [rounds]
    longest = verifications * (k + 1)
    accept = rng.random((ROUNDS, longest)) < acceptance
    accept &= np.arange(longest) < np.asarray(drafted)[:, None]
    tokens = 1 + np.cumprod(accept, axis=1).sum(1)
    spent = 1 + verifications * 0.1 + verifications * k * 0.01
    found = vertical(acceptance, inner, 0.1, 0.01, verifications, k)
    assert found == pytest.approx(tokens.mean() / spent, rel=0.01)


@pytest.mark.parametrize(("acceptance", "k"), [(0.7, 4), (0.2, 1), (0.0, 3), (1.0, 2)])
def test_the_generating_function_holds_the_distribution_of_a_round(
    acceptance: float, k: int
) -> None:
    tokens = 1 + right(np.random.default_rng(2), [acceptance] * k)
    for x in (0.0, 0.3, 0.9, 1.0):
        assert acceptance_pgf(acceptance, k, x) == pytest.approx(np.mean(x**tokens), abs=0.005)


# -- formulas against each other ------------------------------------------------------------------


@given(SHARE, COST, st.integers(0, 12))
@examples(100)
def test_one_drafter_is_a_horizontal_cascade_of_equals(a: float, c: float, k: int) -> None:
    assert speculative(a, c, k) == pytest.approx(horizontal([a] * k, [c] * k))


@given(SHARE, COST, st.integers(0, 8), COST)
@examples(100)
def test_a_vertical_cascade_without_inner_drafts_is_speculative(
    a: float, c: float, n: int, inner_cost: float
) -> None:
    assert vertical(a, 0.5, c, inner_cost, n, 0) == pytest.approx(speculative(a, c, n))


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(1, 8), st.integers(1, 6), COST)
@examples(100)
def test_a_free_inner_drafter_always_helps(
    a: float, inner: float, k: int, n: int, c: float
) -> None:
    """Corollary 4.4."""
    assert acceptance_pgf(inner, k, a) < a
    assert vertical(a, inner, c, 0.0, n, k) > speculative(a, c, n)


def test_certain_drafts() -> None:
    assert speculative(1.0, 0.1, 4) == pytest.approx(5 / 1.4)
    assert vertical(1.0, 1.0, 0.1, 0.01, 2, 3) == pytest.approx(9 / 1.26)


def test_a_dear_verifying_pass_shortens_the_draft() -> None:
    flat, steep = [1.0] * 9, [1 + 0.3 * k for k in range(9)]
    assert best_length(0.8, 0.05, 8, flat) == best_length(0.8, 0.05, 8) > 0
    assert best_length(0.8, 0.05, 8, steep) < best_length(0.8, 0.05, 8)
    assert speculative(0.8, 0.05, 3, verify=2.0) == pytest.approx(2.952 / 2.15)


def test_the_best_cascades_are_the_best_of_all() -> None:
    lengths, gain = best_horizontal([0.8, 0.6], [0.2, 0.01], 6)
    every = {
        (i, j): horizontal([0.8] * i + [0.6] * j, [0.2] * i + [0.01] * j)
        for i in range(7)
        for j in range(7 - i)
    }
    assert gain == pytest.approx(max(every.values()))
    assert every[lengths[0], lengths[1]] == pytest.approx(gain)
    assert min(lengths) > 0, "it is a cascade"
    assert best_horizontal([0.5], [0.1], 8)[0] == (best_length(0.5, 0.1, 8),)
    assert best_horizontal([0.0, 0.0], [0.0, 0.0], 4)[0] == (0, 0), "the shorter on a tie"

    (verifications, k), gain = best_vertical(0.8, 0.7, 0.2, 0.001, 8)
    assert verifications * (k + 1) <= 8 and k > 0
    assert gain == pytest.approx(vertical(0.8, 0.7, 0.2, 0.001, verifications, k))
    assert gain > speculative(0.8, 0.2, best_length(0.8, 0.2, 8))


# -- the paper's table ----------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: f"{row.dataset}-{'-'.join(row.drafters)}")
def test_table_1_comes_out(row: Any) -> None:
    assert f"{row.ewif():.2f}" == f"{row.printed:.2f}"
    if len(row.drafters) == 1:  # the paper's lengths of single drafters are the best ones
        (drafter,) = row.drafters
        rate = TABLE_1_ACCEPTANCE[row.dataset][drafter]
        assert best_length(rate, TABLE_1_COST[drafter], 30) == row.lengths[0]


def test_table_1_by_simulation() -> None:
    row = TABLE_1[-1]  # base drafts 5 tokens, small 8 more
    tokens = 1 + right(np.random.default_rng(3), [0.80] * 5 + [0.75] * 8)
    spent = 1 + 5 * TABLE_1_COST["base"] + 8 * TABLE_1_COST["small"]
    assert tokens.mean() / spent == pytest.approx(row.printed, rel=0.01)


# -- standardized walltime ------------------------------------------------------------------------


def test_swi_by_hand() -> None:
    # 10 tokens in 4 passes of a model of 100, and 12 of a drafter of 10
    assert swi(10, 100, [(4, 100), (12, 10)]) == pytest.approx(1000 / 520)
    assert swi(10, 100, [(10, 100)]) == 1.0  # autoregressive
    assert swi(0, 100, []) == 0.0


def test_swi_agrees_with_ewif_in_the_long_run() -> None:
    tokens = int((1 + right(np.random.default_rng(4), [0.7] * 4)).sum())
    found = swi(tokens, 100.0, [(ROUNDS, 100.0), (4 * ROUNDS, 5.0)])
    assert found == pytest.approx(speculative(0.7, 0.05, 4), rel=0.01)


# -- figures from measurements --------------------------------------------------------------------


def answer(rounds: int, drafted: int, accepted: int) -> DecodeResult:
    return DecodeResult(
        "a", [1], [1] * (1 + rounds + accepted), "", "length", rounds, drafted, accepted,
        [accepted], 1 + rounds, drafted, 0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def test_acceptance_from_single_drafts() -> None:
    # the last round of each answer had no room for a draft
    assert acceptance_of([answer(6, 5, 3), answer(11, 10, 6)]) == pytest.approx(9 / 15)
    # three rounds found nothing to copy: one is put down to room, two are misses
    assert acceptance_of([answer(8, 5, 3)]) == pytest.approx(3 / 7)
    with pytest.raises(DraftpickError, match="nothing was drafted"):
        acceptance_of([answer(1, 0, 0)])


def test_measured_seconds_become_target_passes() -> None:
    found = from_costs("small", 0.5, Costs((0.010, 0.011, 0.013), {"small": 0.002}), 4)
    assert found.cost == pytest.approx(0.2)
    beyond = (1.3 + 0.15, 1.3 + 0.3)  # a token more takes what it took on average up to there
    assert found.verify == pytest.approx((1.0, 1.1, 1.3, *beyond))
    with pytest.raises(DraftpickError, match="known: small"):
        from_costs("big", 0.5, Costs((0.01,), {"small": 0.002}), 4)
