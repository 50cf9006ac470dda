"""Gains by costs that were measured several times: their bounds include what these differ by."""

import math
from dataclasses import replace

import numpy as np
import pytest
from policy_tables import table, with_features

from policies import RewardTable, guarded, report
from policies.errors import PolicyError
from policies.evaluation.bounds import costs_margin, gain_of, resamples
from policies.evaluation.evaluate import aligned
from policies.evaluation.units import independent
from policies.selection.headroom import headroom

R = 5


def banded(wobble: float) -> RewardTable:
    """`ngram` is better at temperature 0 by 0.3, `small` above; by each measurement of the costs,
    the leads are others, by `wobble` times 1, 0, -1, 0 and 0."""
    rng = np.random.default_rng(0)
    temperature = np.arange(120) % 2 * 1.0
    rewards = rng.normal(scale=0.1, size=(120, 3)) + 1
    lead = np.where(temperature > 0, -0.15, 0.15)
    rewards[:, 1] -= lead
    rewards[:, 2] += lead
    shift = np.zeros((R, 120, 3))
    for r, off in enumerate((1, 0, -1, 0, 0)):
        shift[r, :, 2] = wobble * off * np.sign(lead)
    plain = with_features(table(rng.normal(size=(120, 4)), rewards), temperature=temperature)
    return replace(plain, repeats=rewards + shift)


def test_costs_that_agree_change_no_bound_and_others_add_in_squares() -> None:
    gains = np.random.default_rng(1).normal(0.2, 1.0, 200)
    units = independent(200)
    counts = resamples(units, 0)
    plain = gain_of(gains, units, counts)
    same = gain_of(gains, units, counts, by_costs=np.full(R, gains.mean()))
    assert (same.low, same.high, same.costs_error) == (
        pytest.approx(plain.low), pytest.approx(plain.high), 0
    )  # fmt: skip
    by_costs = gains.mean() + np.array([0.05, -0.05, 0.0, 0.1, -0.1])
    wide = gain_of(gains, units, counts, by_costs=by_costs)
    # Student's t of four degrees of freedom at 95% is 2.132
    margin = 2.1318 * math.sqrt(0.025 / 4) / math.sqrt(5)
    assert wide.costs_error == pytest.approx(margin, rel=1e-4)
    assert wide.low == pytest.approx(wide.mean - math.hypot(plain.mean - plain.low, margin), 1e-4)
    assert wide.high - wide.mean == pytest.approx(math.hypot(plain.high - plain.mean, margin), 1e-4)
    assert plain.needed and wide.needed and wide.needed > plain.needed
    lost = gain_of(gains, units, counts, by_costs=10 * (by_costs - gains.mean()) + gains.mean())
    assert lost.needed is None and lost.low < 0 < lost.mean


@pytest.mark.parametrize(("level", "most"), [(0.95, 0.065), (0.99, 0.014)])
def test_a_bound_by_costs_alone_is_wrong_about_as_often_as_it_says(
    level: float, most: float
) -> None:
    """Five normal measurements, their median in use, and a true gain of 0."""
    drawn = np.random.default_rng(2).normal(size=(3000, R))
    above = [np.median(one) > costs_margin(float(np.median(one)), one, level) for one in drawn]
    assert 0.5 * (1 - level) < np.mean(above) < most
    assert costs_margin(1.0, np.array([3.0]), level) == 0


def test_the_guard_saves_what_gains_by_all_costs_alone() -> None:
    sure, unsure = (guarded(banded(wobble), policy="regression") for wobble in (0.01, 0.6))
    assert sure.saved == "binned by temperature"
    assert unsure.saved == "best-fixed"
    assert "Collect again on an idle machine" in unsure.verdict
    assert [one.gain.mean for one in sure.tried] == [one.gain.mean for one in unsure.tried]
    once = guarded(replace(banded(0.6), repeats=None), policy="regression")
    assert once.saved == "binned by temperature" and once.tried[0].gain.costs_error is None


def test_headroom_and_printed_intervals_include_them() -> None:
    narrow, wide = banded(0.0), banded(0.3)
    first, second = (headroom(each).choices[1].gain for each in (narrow, wide))
    assert first.above_zero and first.mean == second.mean and second.low < first.low
    assert "Collect again on an idle machine" in " ".join(headroom(banded(0.6)).advice)
    policy = guarded(narrow, policy="regression").fitted.policy
    gains = [report(policy, each, probs=aligned(policy, each)).gain for each in (narrow, wide)]
    assert gains[1].low < gains[0].low < gains[0].high < gains[1].high


def test_a_table_keeps_its_repeats_in_step() -> None:
    whole = banded(0.3)
    part = whole.rows([3, 1])
    np.testing.assert_array_equal(part.repeats, whole.repeats[:, [3, 1]])
    assert part.digest == replace(part, repeats=None).digest
    gap = whole.rewards.copy()
    gap[0, 1] = np.nan
    repeats = whole.repeats.copy()
    repeats[:, 0, 1] = np.nan
    filled = replace(whole, rewards=gap, repeats=repeats).filled()
    np.testing.assert_array_equal(filled.repeats[:, 0, 1], np.nanmin(repeats[:, 0], axis=1))
    with pytest.raises(PolicyError, match="repeats have shape"):
        replace(whole, repeats=whole.repeats[:, 1:])
