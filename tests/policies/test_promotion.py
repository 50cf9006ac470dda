"""Who may take the champion's place, and by how much the others fall short."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import separable, table, tiny

from policies import PolicyError, RewardTable, fit, fixed_policy, uniform_policy
from policies.selection.promotion import compare_on, loss_bound


def even(n: int = 80, gap: float = 0.1, noise: float = 0.3, seed: int = 0) -> RewardTable:
    """Arm `small` earns `gap` more than `autoregressive` on average, `ngram` exactly as much."""
    rng = np.random.default_rng(seed)
    rewards = np.ones((n, 3))
    drawn = rng.normal(size=n)
    rewards[:, 1] += gap + noise * (drawn - drawn.mean())
    return table(rng.normal(size=(n, 4)).astype(np.float32), rewards)


def always(arm: str, data: RewardTable) -> object:
    return fixed_policy(data.arms, arm)


def test_a_better_policy_passes_and_a_worse_one_does_not() -> None:
    data, held = separable(200), separable(60, seed=1)
    good, bad = fit("regression", data).policy, fixed_policy(data.arms, "small")
    up = compare_on(good, held, bad, named="@champion (version 1)")
    down = compare_on(bad, held, good, named="@champion (version 1)")
    assert up.passed and up.gain.low > 0 and not down.passed
    assert down.gain.mean == pytest.approx(-up.gain.mean)
    said = down.verdict("version 2 of m")
    lost = -down.gain.mean
    percent = 100 * lost / down.other_mean
    assert said.startswith(
        f"version 2 of m earns {lost:.4g} ({percent:.1f}%) less than @champion (version 1) on 60 "
    )
    assert f"at least {-down.gain.high:.4g} less with 95% confidence" in said
    assert f"at least {up.gain.low:.4g} more with 95% confidence" in up.verdict("v")


def test_the_same_choices_pass() -> None:
    data = even()
    same = compare_on(always("small", data), data, always("small", data))
    assert same.passed and same.alike == 1 and "takes the same arms" in same.verdict("v")


def test_what_is_not_sure_does_not_pass_and_the_margin_lets_it() -> None:
    data = even(gap=0.05, noise=0.3)
    small, plain = always("small", data), always("autoregressive", data)
    found = compare_on(small, data, plain)
    assert found.gain.mean == pytest.approx(0.05) and not found.passed
    said = found.verdict("v")
    assert f"perhaps up to {-found.gain.low:.4g} less" in said
    assert f"about {found.gain.needed} queries would settle it" in said
    wide = compare_on(small, data, plain, margin=-found.gain.low)
    assert wide.passed
    narrow = compare_on(small, data, plain, margin=-found.gain.low - 1e-6)
    assert not narrow.passed


@examples(25)
@given(st.floats(-0.3, 0.3), st.integers(0, 5))
def test_it_passes_exactly_where_the_bound_allows(gap: float, seed: int) -> None:
    data = even(gap=gap, seed=seed)
    arms = always("small", data), always("autoregressive", data)
    found = compare_on(arms[0], data, arms[1], margin=0.05)
    gains = data.rewards[:, 1] - 1
    from scipy.stats import t

    low = gains.mean() - t.ppf(0.95, 79) * gains.std(ddof=1) / np.sqrt(80)
    assert found.gain.low <= low + 1e-9, "the more careful of both bounds"
    assert found.passed == (found.gain.low >= -0.05)


def test_without_a_champion_the_best_fixed_arm_stands_in() -> None:
    data = even(gap=0.4)
    found = compare_on(always("autoregressive", data), data)
    assert found.other == "the best fixed arm (small)" and not found.passed
    assert compare_on(always("small", data), data).passed


def test_rows_of_one_query_count_once() -> None:
    data = even()
    twice = replace(
        data,
        query_ids=[*data.query_ids, *(f"{one}@1" for one in data.query_ids)],
        tasks=data.tasks * 2,
        groups=[*data.groups, *data.groups],
        embeddings=np.concatenate([data.embeddings] * 2),
        rewards=np.concatenate([data.rewards] * 2),
    )
    arms = always("small", data), always("autoregressive", data)
    one, two = (compare_on(arms[0], each, arms[1]) for each in (data, twice))
    assert one.gain == two.gain


def test_each_policy_reads_its_own_table() -> None:
    """Other embeddings, another order, and a row that only one of them has."""
    data = separable(200)
    held = separable(70, seed=3)
    wide = replace(held, embeddings=held.embeddings[:, :3], embedder="toy/3")
    trained = replace(data, embeddings=data.embeddings[:, :3], embedder="toy/3")
    narrow = fit("regression", trained).policy
    ours = fit("regression", data).policy
    both = compare_on(ours, held, narrow, wide.rows(range(68, -1, -1)))
    assert "1 rows that only one policy can read are left out" in both.left_out
    assert both.gain.queries == 69
    same = compare_on(ours, held.rows(range(69)), narrow, wide.rows(range(69)))
    assert both.gain == same.gain


def test_failed_answers_count_as_the_worst() -> None:
    data = even(gap=0.5, noise=0.01)
    rewards = data.rewards.copy()
    rewards[:30, 1] = np.nan
    failing = replace(data, rewards=rewards)
    found = compare_on(always("small", data), failing, always("autoregressive", data))
    assert found.gain.mean == pytest.approx((data.rewards[30:, 1] - 1).sum() / 80)
    assert found.left_out == "30 failed answers count as the worst of their query"


def test_bounds_of_losses_are_ordered() -> None:
    arms, free = ("plain", "copy", "bild"), ("plain", "copy")

    def under(max_loss: float, confidence: float | None, threshold: float | None = 0.5) -> Any:
        guarantee = SimpleNamespace(max_loss=max_loss, confidence=confidence, threshold=threshold)
        return SimpleNamespace(arms=list(arms), lossless=list(free), guarantee=guarantee)

    ascending = [under(0.5, 0.95, None), under(0.02, 0.95), under(0.05, 0.95), under(0.2, 0.95)]
    bounds = [loss_bound(policy, free) for policy in [*ascending, uniform_policy(arms)]]
    for one, other in combinations(bounds, 2):
        assert other.looser(one) and not one.looser(other)
    sure, mean = bounds[2], loss_bound(under(0.05, None), free)
    assert mean.looser(sure) and not sure.looser(mean)
    assert str(sure) == "loses at most 0.05 with 95% confidence"
    assert str(mean) == "loses at most 0.05 on average"
    assert [loss_bound(fixed_policy(arms, arm), free).most for arm in arms] == [0, 0, np.inf]
    assert loss_bound(uniform_policy(free), free) == bounds[0]


def test_what_is_refused() -> None:
    data = even()
    small = always("small", data)
    with pytest.raises(PolicyError, match="12 queries are too few"):
        compare_on(always("small", tiny()), tiny())
    with pytest.raises(PolicyError, match="margin must be 0 or more, not -1"):
        compare_on(small, data, margin=-1)
    other = replace(data, reward_name="other@1")
    with pytest.raises(PolicyError, match="differ in reward"):
        compare_on(small, data, small, other)


def test_a_later_look_asks_for_more() -> None:
    """The k-th of several has 1 / (k (k + 1)) of the errors, which sum to those of one."""
    data = even(gap=0.07)
    arms = always("small", data), always("autoregressive", data)
    alone, first, tenth = (compare_on(arms[0], data, arms[1], look=look) for look in (None, 1, 10))
    assert alone.gain.low > first.gain.low > tenth.gain.low
    assert alone.passed and not tenth.passed
    assert "over all looks, of which this is number 10" in replace(
        tenth, gain=first.gain, margin=1.0
    ).verdict("v")
