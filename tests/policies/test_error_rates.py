"""Bounds and decisions are wrong as seldom as they say, on made-up tables whose truth is known."""

from __future__ import annotations

from functools import lru_cache

import pytest
from scipy.stats import binom

from benchmarks import error_rates
from policies.evaluation import bootstrap, bounds

pytestmark = pytest.mark.slow
TABLES = 100


@pytest.fixture(autouse=True)
def resampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "resample", lru_cache(maxsize=16)(bootstrap.resample))


@pytest.mark.parametrize("shape", [s for s in error_rates.SHAPES if s != "losses in 2%"])
@pytest.mark.parametrize("n", error_rates.SIZES)
def test_bounds(shape: str, n: int) -> None:
    wrong, power = error_rates.bound_errors(shape, n, 300)["in use"]
    assert 300 * wrong <= binom.ppf(0.999, 300, 0.05)
    assert n < 300 or power > 0.8


@pytest.mark.parametrize("what", error_rates.DECISIONS)
@pytest.mark.parametrize("kind", error_rates.KINDS)
def test_decisions(what: str, kind: str) -> None:
    given = error_rates.KINDS[kind]
    wrong = sum(error_rates.DECISIONS[what](seed, *given) for seed in range(TABLES))
    assert wrong <= binom.ppf(0.999, TABLES, 0.05)
