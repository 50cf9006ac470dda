"""Queries of one source are not independent: what a table's groups change, and what they leave."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import ARMS, separable, table, with_features
from scipy.stats import binom, t

from benchmarks import error_rates
from policies import PolicyError, RewardTable, fixed_policy, report
from policies.evaluation import bootstrap, bounds
from policies.evaluation.bootstrap import (
    group_index,
    group_means,
    group_sums,
    interval,
    ratio,
    resample,
    resampled_sums,
)
from policies.evaluation.bounds import gain_of, resamples
from policies.evaluation.units import Units, independent, units_of
from policies.risk_control.bounds import Risk
from policies.risk_control.fitting import fit_risk_control
from policies.risk_control.thresholds import RiskCurve, parted
from policies.selection.crossfit import folds_of, subsample
from policies.selection.guard import guarded as guard
from policies.selection.promotion import compare_on


def of_sources(sources: int, each: int, shared: float, seed: int = 0) -> np.ndarray:
    """[sources * each] of mean 0 and variance 1, of which `shared` is alike within a source."""
    rng = np.random.default_rng(seed)
    alike = np.repeat(rng.normal(size=sources), each)
    return np.sqrt(shared) * alike + np.sqrt(1 - shared) * rng.normal(size=sources * each)


def in_groups(data: RewardTable, each: int) -> RewardTable:
    groups = [f"s{i // each}" for i in range(len(data))]
    return replace(data, groups=groups, queries=data.query_ids)


@pytest.mark.parametrize("tests", [1, 6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bounds_are_worked_out_from_the_resampled_groups(sign: float, tests: int) -> None:
    """One group more is as bad as the worst, and as good as the best. Rare and large values are on
    one side, where the percentile lies further out than Student's t."""
    rng = np.random.default_rng(3)
    group_of = np.sort(rng.integers(0, 90, 300))
    group_of = np.unique(group_of, return_inverse=True)[1]
    units, gains = Units(np.arange(300), group_of), sign * rng.exponential(size=300) ** 3
    counts = resamples(units, 0)
    found, mean, n = gain_of(gains, units, counts, tests), gains.mean(), units.groups
    moved = np.bincount(group_of, gains - mean) / (300 / n)
    for bound, end, one in ((found.low, 1, moved.min()), (found.high, -1, moved.max())):
        values = end * np.append(moved, one)
        percentile = np.quantile(counts @ values / (n + 1), 0.05 / tests)
        by_t = values.mean() - t.ppf(1 - 0.05 / tests, n) * values.std(ddof=1) / (n + 1) ** 0.5
        assert bound == pytest.approx(mean + end * min(percentile, by_t), rel=1e-12)
        assert tests > 1 or (percentile < by_t) == (end != sign)


def test_a_table_knows_its_queries_and_their_groups() -> None:
    plain = separable(60)
    grouped = in_groups(plain, 3)
    assert (plain.queries, plain.query_of) == ([], plain.query_ids)
    assert grouped.query_of == plain.query_ids and grouped.groups[:4] == ["s0", "s0", "s0", "s1"]
    assert grouped.rows([3, 0]).groups == ["s1", "s0"]
    assert grouped.rows([3, 0]).query_of == ["q3", "q0"]
    assert grouped.digest != plain.digest
    assert replace(plain, groups=plain.query_ids, queries=plain.query_ids).digest == plain.digest
    units = units_of(grouped)
    assert (units.queries, units.groups, str(units)) == (60, 20, "60 queries of 20 sources")
    assert str(units_of(plain)) == "60 queries"
    with pytest.raises(PolicyError, match="has 60 rows, but 1 queries"):
        replace(plain, queries=["q"])


def test_a_query_counts_once_and_a_group_as_often_as_it_has_queries() -> None:
    """Query a in two rows, b and c in one; a and b share a source."""
    units = Units(np.array([0, 1, 0, 2]), np.array([0, 0, 1]))
    np.testing.assert_allclose(units.by_query(np.array([1.0, 5.0, 2.0, 3.0])), [1.5, 5.0, 3.0])


def test_groups_of_one_query_change_nothing_and_copies_count_once() -> None:
    gains = of_sources(80, 1, 0.5)
    alone = gain_of(gains, independent(80), resamples(independent(80), 0))
    every = np.arange(240)
    copies = Units(every, every // 3)
    tripled = gain_of(np.repeat(gains, 3), copies, resamples(copies, 0))
    assert (tripled.queries, tripled.groups, alone.groups) == (240, 80, None)
    np.testing.assert_allclose((tripled.low, tripled.high), (alone.low, alone.high))
    blind = gain_of(np.repeat(gains, 3), independent(240), resamples(independent(240), 0))
    assert blind.low > tripled.low


@pytest.mark.parametrize(("each", "shared"), [(3, 0.5), (5, 0.8)])
def test_a_bound_over_sources_is_wrong_as_seldom_as_it_says(each: int, shared: float) -> None:
    every = np.arange(200 // each * each)
    units, wrong, blind = Units(every, every // each), 0, 0
    one, other = resamples(units, 0), resamples(independent(len(every)), 0)
    for seed in range(120):
        gains = of_sources(len(every) // each, each, shared, seed)
        wrong += gain_of(gains, units, one).low > 0
        blind += gain_of(gains, independent(len(every)), other).low > 0
    assert wrong <= binom.ppf(0.99, 120, 0.05) < blind, (wrong, blind)


def test_no_fold_no_split_and_no_calibration_parts_a_source() -> None:
    data = in_groups(separable(120), 4)
    for parts in (
        [data.rows(np.flatnonzero(folds_of(data, 0) == fold)) for fold in range(5)],
        [one for one in data.split(0.3, 0) if one is not None],
        parted(data, 0.5, 0),
    ):
        seen = [set(part.groups) for part in parts]
        assert sum(map(len, seen)) == 30 and sum(len(part) for part in parts) == 120
    assert len(set(subsample(data, 50, 0).query_of)) == 50, "queries are asked for, not sources"


def test_a_gain_of_few_sources_is_not_saved() -> None:
    few = guard(in_groups(separable(160), 5), policy="regression")
    assert (few.saved, few.queries, few.groups) == ("best-fixed", 160, 32)
    assert "160 queries of 32 sources are too few to say with confidence" in few.verdict
    assert "collect at least 59 independent sources" in few.verdict
    many = guard(in_groups(separable(160), 2), policy="regression")
    assert (many.saved, many.groups) == ("regression", 80)
    held = in_groups(separable(120), 3)
    with pytest.raises(PolicyError, match="120 queries of 40 sources are too few to compare"):
        compare_on(fixed_policy(ARMS, "small"), held)


def test_intervals_of_values_resample_sources() -> None:
    rewards = np.add.outer(of_sources(60, 5, 1.0), np.array([0.0, 1.0]))
    data = table(np.zeros((300, 1), np.float32), rewards)
    policy = fixed_policy(data.arms, data.arms[1])
    alone, together = (report(policy, one)["greedy"] for one in (data, in_groups(data, 5)))
    assert together.mean == alone.mean
    widths = [row.high - row.low for row in (together, alone)]
    assert widths[0] / widths[1] == pytest.approx(5**0.5, rel=0.15)
    one = report(policy, in_groups(data, 300))
    assert np.isnan([*(row.low for row in one.rows), one.gain.low, one.gain.high]).all()
    assert (one.gain.mean, one.gain.interval()) == (together.mean - one["best-fixed"].mean, "-")


def lossy(sources: int, each: int, seed: int = 0) -> RewardTable:
    """A fast arm whose loss is its source's alone: none, or all with a chance of 0.1."""
    rng = np.random.default_rng(seed)
    n = sources * each
    loss = np.repeat(rng.random(sources) < 0.1, each).astype(np.float64)
    rewards = np.stack([np.ones(n), np.full(n, 2.0)], axis=1) + rng.normal(size=(n, 2)) / 10
    plain = table(rng.normal(size=(n, 2)).astype(np.float32), rewards)
    losses = np.stack([np.zeros(n), loss], axis=1)
    return replace(with_features(plain, temperature=np.zeros(n)), losses=losses)


def test_a_bound_on_losses_counts_sources() -> None:
    """At the edge, where exactly what is allowed is lost, the lossy arm is allowed too often by
    queries and as seldom as was said by sources."""
    risk, allowed = Risk(0.1, 0.95), {1: 0, 10: 0}
    for seed in range(400):
        data = lossy(40, 10, seed)
        losses = np.stack([np.zeros(400), data.losses[:, 1]], axis=1)
        for each in allowed:
            every = np.arange(400)
            curve = RiskCurve(losses, losses, losses, data.tasks, Units(every, every // each))
            allowed[each] += curve.selected(risk)
    assert allowed[10] <= binom.ppf(0.99, 400, 0.05) < allowed[1], allowed


def test_sources_count_alike() -> None:
    """Those of two queries and of one."""
    units = Units(np.arange(3), np.array([0, 0, 1]))
    losses = np.array([[0.0, 0.5], [0.0, 0.1], [0.0, 1.0]])
    curve = RiskCurve(losses, losses, losses, ["t"] * 3, units)
    np.testing.assert_allclose(curve.by_group(Risk(0.2)), [[0.3], [1.0]])


def test_a_guarantee_says_of_how_many_sources_it_is() -> None:
    data = in_groups(lossy(300, 1), 2)
    given = {"lossless": [ARMS[0]], "max_loss": 0.3, "confidence": 0.9}
    policy = fit_risk_control(data, **given).policy
    assert policy.guarantee.sources == 75 and policy.guarantee.queries == 150
    assert "150 calibration queries of 75 sources" in str(policy.guarantee)
    with pytest.raises(PolicyError, match=r"needs at least 59 sources of queries .* 50 sources"):
        fit_risk_control(in_groups(data.rows(range(200)), 2), lossless=[ARMS[0]])


# -- the bootstrap that every interval is drawn by -------------------------------------------------


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


# -- a smaller table: queries in proportion, inside of a larger one --------------------------------


def of_tasks(tasks: list[str], rows: int = 1) -> RewardTable:
    """`rows` rows a query."""
    n = len(tasks) * rows
    made = table(np.zeros((n, 2)), np.arange(2.0 * n).reshape(-1, 2))
    of = np.repeat(np.arange(len(tasks)), rows)
    return replace(made, tasks=[tasks[i] for i in of], groups=[str(i) for i in of])


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 9),
    st.data(),
)
def test_so_many_whole_queries_and_nested(
    tasks: list[str], rows: int, seed: int, data: st.DataObject
) -> None:
    whole = of_tasks(tasks, rows)
    more = data.draw(st.integers(1, len(tasks)))
    fewer = data.draw(st.integers(1, more))
    large, small = subsample(whole, more, seed), subsample(whole, fewer, seed)
    assert len(set(large.groups)) == more and len(large) == more * rows
    assert len(set(small.groups)) == fewer and set(small.query_ids) <= set(large.query_ids)
    for task in set(tasks):  # a task's share is kept but for one query
        had, kept = tasks.count(task), small.tasks.count(task) / rows
        assert abs(kept - fewer * had / len(tasks)) <= len(set(tasks))


def test_every_task_in_its_proportion() -> None:
    whole = of_tasks(["x"] * 60 + ["y"] * 30)
    counts = [subsample(whole, 30, seed).tasks.count("x") for seed in range(30)]
    assert max(abs(count - 20) for count in counts) <= 2


def test_another_seed_takes_others() -> None:
    whole = of_tasks(["x"] * 50)
    assert subsample(whole, 10, 0).groups != subsample(whole, 10, 1).groups


@pytest.mark.parametrize("queries", [0, -1, 4])
def test_a_number_that_cannot_be(queries: int) -> None:
    with pytest.raises(PolicyError, match="1 to 3, or collect more"):
        subsample(of_tasks(["x"] * 3), queries, 0)


# -- made-up tables whose truth is known -----------------------------------------------------------


TABLES = 100


@pytest.fixture(scope="module")
def resampled_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "resample", lru_cache(maxsize=16)(bootstrap.resample))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("resampled_once")
@pytest.mark.parametrize("shape", [s for s in error_rates.SHAPES if s != "losses in 2%"])
@pytest.mark.parametrize("n", error_rates.SIZES)
def test_bounds(shape: str, n: int) -> None:
    wrong, power = error_rates.bound_errors(shape, n, 300, names=["in use"])["in use"]
    assert 300 * wrong <= binom.ppf(0.999, 300, 0.05)
    assert n < 300 or power > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("resampled_once")
@pytest.mark.parametrize("what", error_rates.DECISIONS)
@pytest.mark.parametrize("each", sorted({made[0] for made in error_rates.KINDS.values()}))
def test_decisions(what: str, each: int) -> None:
    """Kinds of as many queries a source, which are resampled alike, are tried side by side."""
    kinds = {kind: made for kind, made in error_rates.KINDS.items() if made[0] == each}
    wrong = dict.fromkeys(kinds, 0)
    for seed in range(TABLES):
        for kind, made in kinds.items():
            wrong[kind] += error_rates.DECISIONS[what](seed, *made)
    assert wrong and max(wrong.values()) <= binom.ppf(0.999, TABLES, 0.05), wrong
