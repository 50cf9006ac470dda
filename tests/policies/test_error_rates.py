"""Bounds and decisions are wrong as seldom as they say, on made-up tables whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest
from scipy.stats import binom

from benchmarks import error_rates
from policies.evaluation import bootstrap, bounds

pytestmark = pytest.mark.slow
TABLES = 100


@pytest.fixture(autouse=True, scope="module")
def resampled_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "resample", lru_cache(maxsize=16)(bootstrap.resample))
        yield


@pytest.mark.parametrize("shape", [s for s in error_rates.SHAPES if s != "losses in 2%"])
@pytest.mark.parametrize("n", error_rates.SIZES)
def test_bounds(shape: str, n: int) -> None:
    wrong, power = error_rates.bound_errors(shape, n, 300, names=["in use"])["in use"]
    assert 300 * wrong <= binom.ppf(0.999, 300, 0.05)
    assert n < 300 or power > 0.8


@pytest.mark.parametrize("what", error_rates.DECISIONS)
@pytest.mark.parametrize("each", sorted({given[0] for given in error_rates.KINDS.values()}))
def test_decisions(what: str, each: int) -> None:
    """Kinds of as many queries a source, which are resampled alike, are tried side by side."""
    kinds = {kind: given for kind, given in error_rates.KINDS.items() if given[0] == each}
    wrong = dict.fromkeys(kinds, 0)
    for seed in range(TABLES):
        for kind, given in kinds.items():
            wrong[kind] += error_rates.DECISIONS[what](seed, *given)
    assert wrong and max(wrong.values()) <= binom.ppf(0.999, TABLES, 0.05), wrong
