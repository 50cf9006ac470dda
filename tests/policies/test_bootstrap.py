"""The bootstrap that every interval is drawn by."""

from __future__ import annotations

import numpy as np
import pytest

from policies import PolicyError
from policies.evaluation import bootstrap
from policies.evaluation.bootstrap import (
    group_index,
    group_means,
    group_sums,
    interval,
    ratio,
    resample,
    resampled_sums,
)


def test_sums_in_blocks_are_the_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.random.default_rng(1).normal(size=(30, 3))
    counts = resample(30, seed=4, resamples=50)
    assert (counts.sum(axis=1) == 30).all()
    monkeypatch.setattr(bootstrap, "BLOCK", 30 * 7)
    np.testing.assert_allclose(resampled_sums(columns, 4, 50), counts @ columns)
    for call in (lambda: resample(3, 0, 0), lambda: resampled_sums(columns, 0, 0)):
        with pytest.raises(PolicyError, match="at least 1, not 0"):
            call()


def test_an_interval_is_of_the_figures_that_have_a_value() -> None:
    drawn = ratio(np.arange(101.0), np.r_[0.0, np.ones(100)])
    assert np.isnan(drawn[0])
    assert interval(drawn, 0.98) == pytest.approx((1.99, 99.01))
    assert np.isnan(interval(drawn[:1])).all()


def test_groups_are_in_the_order_in_which_they_come() -> None:
    index = group_index(["b", "a", "b", "c"])
    assert index.tolist() == [0, 1, 0, 2]
    np.testing.assert_array_equal(group_sums(np.array([1.0, 2, 3, 4]), index), [4, 2, 4])
    rows = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    np.testing.assert_array_equal(group_means(rows, index), [[3, 4], [3, 4], [7, 8]])
    assert group_sums(np.zeros(0), group_index([])).shape == (0,)
