"""The guard: noise is never mistaken for a gain, and a gain is kept with honest bounds."""

import re
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
from effort import FULL, examples
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import ARMS, separable, table, tiny, with_features
from scipy.stats import binom

import policies
from decoders.common.errors import NoSuchName
from policies import PolicyError, RewardTable, guarded
from policies.evaluation import bootstrap, bounds
from policies.evaluation.bootstrap import CONFIDENCE
from policies.evaluation.bounds import MIN_BOUNDED_GROUPS, Gain, gain_of, resamples
from policies.evaluation.decisions import decisions, regret
from policies.evaluation.units import independent
from policies.learners.binned import bins_of
from policies.selection.crossfit import best_fixed, cross_fit, earned, folds_of, usable
from policies.selection.guard import LEARNERS, candidates, verdict

SEEDS = 80 if FULL else 24


@cache
def counts_of(queries: int) -> np.ndarray:
    return resamples(independent(queries), 0)


def bounded(gains: np.ndarray) -> Gain:
    """Of queries that have nothing in common."""
    return gain_of(gains, independent(len(gains)), counts_of(len(gains)))


def noise(seed: int, kind: str, n: int = 60) -> RewardTable:
    """Rewards that neither the embedding nor the feature says anything of."""
    rng = np.random.default_rng(seed)
    drawn = {
        "normal": rng.normal(size=(n, 3)),
        "skewed": rng.lognormal(0.0, 1.0, size=(n, 3)),
        "one arm ahead": rng.normal([0.0, 0.3, 0.0], size=(n, 3)),
    }[kind]
    plain = table(rng.normal(size=(n, 4)).astype(np.float32), drawn)
    return with_features(plain, temperature=rng.choice([0.0, 0.7, 1.0], size=n))


def banded(n: int = 120, seed: int = 0) -> RewardTable:
    """`ngram` is best at temperature 0, `small` above; the embedding says nothing."""
    rng = np.random.default_rng(seed)
    temperature = np.arange(n) % 3 / 2
    rewards = rng.normal(scale=0.3, size=(n, 3)) + 1
    rewards[:, 1] += np.where(temperature > 0, 0.3, -0.3)
    rewards[:, 2] += np.where(temperature > 0, -0.3, 0.3)
    plain = table(rng.normal(size=(n, 4)).astype(np.float32), rewards)
    return with_features(plain, temperature=temperature, words=rng.integers(5, 500, size=n))


@pytest.mark.property  # of random tables: three times as many in `make slow`
@pytest.mark.parametrize("policy", ["knn", pytest.param("logistic", marks=pytest.mark.slow)])
def test_noise_is_left_to_the_best_fixed_arm(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 5 % of tables are mistaken; the tolerance is that count's own binomial spread. A
    seed's tables are resampled alike, so that they are tried side by side."""
    monkeypatch.setattr(bounds, "resample", lru_cache(maxsize=2)(bootstrap.resample))
    kept = dict.fromkeys(["normal", "skewed", "one arm ahead"], 0)
    for seed in range(SEEDS):
        for kind in kept:
            found = guarded(noise(seed, kind), seed=seed, policy=policy)
            kept[kind] += found.saved == "best-fixed"
    assert min(kept.values()) >= binom.ppf(0.001, SEEDS, CONFIDENCE), kept


@pytest.mark.slow
def test_noise_is_left_to_the_best_fixed_arm_by_all_candidates_together() -> None:
    kept = sum(
        guarded(noise(seed, "normal"), seed=seed).saved == "best-fixed" for seed in range(40)
    )
    assert kept >= binom.ppf(0.001, 40, CONFIDENCE), kept


@pytest.mark.property
def test_a_learner_with_something_to_learn_is_saved_and_keeps_its_promise() -> None:
    """Between its bounds lies what a policy of as many queries as it was judged with, four fifths,
    gains on fresh ones; the policy that is saved has learnt from all of them and gains more."""
    inside, tables = 0, 20 if FULL else 8
    for seed in range(tables):
        train, fresh = separable(160, seed=seed), separable(2000, seed=1000 + seed)
        found = guarded(train, seed=seed, policy="regression")
        assert found.saved == "regression"
        (one,) = found.tried
        assert one.percent == pytest.approx(100 * one.gain.mean / found.best_fixed_mean)
        fixed = fresh.rewards[:, train.arms.index(found.best_fixed)].mean()
        part, _ = train.split(0.2, seed)
        judged = policies.fit("regression", part).policy
        real, whole = (
            policies.value(each, fresh, resamples=1).mean - fixed
            for each in (judged, found.fitted.policy)
        )
        inside += one.gain.low <= real <= one.gain.high
        assert whole > one.gain.low > 0
    assert inside >= binom.ppf(0.001, tables, 0.9), inside


def test_auto_saves_the_simplest_that_is_sure() -> None:
    found = guarded(separable(160), seed=0)
    assert [one.name for one in found.tried] == list(LEARNERS)
    assert found.saved == "regression"
    assert found.fitted.policy.name == "regression"
    assert found.verdict.startswith("Saved: regression. It gains ")
    assert found.skipped == {}
    (alone,) = guarded(separable(160), seed=0, policy="regression").tried
    among = found.tried[0]
    assert among.gain.mean == alone.gain.mean
    assert among.gain.low < alone.gain.low, "four bounds that hold together are wider"


def test_auto_takes_a_more_complex_one_where_it_is_surely_better() -> None:
    """The best arm depends on the product of two inputs: nothing linear sees it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    rewards = np.zeros((400, 3)) + 0.2
    rewards[:, 0] += x[:, 0] > 0.5  # a part is linear
    rewards[:, 1] += 2 * (x[:, 0] * x[:, 1] > 0)
    found = guarded(table(x, rewards), seed=0)
    by_name = {one.name: one.gain for one in found.tried}
    assert found.saved in ("knn", "reinforce")
    assert by_name[found.saved].mean > by_name["regression"].mean


def test_bins_are_saved_where_the_temperature_decides() -> None:
    found = guarded(banded(), seed=0, policy="knn")
    assert found.saved == "binned by temperature"
    policy = found.fitted.policy
    assert policy.embedder == "any" and policy.origin.features == ("temperature",)
    chosen = [policy.choose(np.array([t])).arm for t in (0.0, 0.5, 1.0)]
    assert chosen == ["ngram", "small", "small"]
    assert [one.name for one in found.tried] == ["binned by temperature", "binned by words", "knn"]
    assert policies.value(policy, banded(), greedy=True).mean > 1.1


def test_another_arm_may_stand_for_the_best_one_and_candidates_may_be_objected_to() -> None:
    """For a caller to whom some choices are forbidden, whatever they earn."""
    data, worst = separable(160), ARMS[int(separable(160).rewards.mean(axis=0).argmin())]
    usual, over_worst = (
        guarded(data, seed=0, policy="regression", fixed=each) for each in (None, worst)
    )
    assert over_worst.best_fixed == worst != usual.best_fixed
    assert f"the fixed arm ({worst})" in over_worst.verdict and over_worst.saved == usual.saved
    gains = [one.tried[-1].gain.mean for one in (usual, over_worst)]
    assert gains[1] > gains[0]

    def objection(table: RewardTable, probs: np.ndarray) -> str:
        assert probs.shape == table.rewards.shape
        return "it leaves the arm" if (probs.argmax(axis=1) != ARMS.index(worst)).any() else ""

    none = guarded(data, seed=0, policy="regression", fixed=worst, objection=objection)
    assert none.saved == "best-fixed" and none.fitted.policy.origin.options["arm"] == worst
    assert none.skipped and set(none.skipped.values()) == {"it leaves the arm"}
    with pytest.raises(NoSuchName, match="nobody"):
        guarded(data, fixed="nobody")


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, two = (guarded(noise(3, "normal"), seed=5, policy="knn") for _ in range(2))
    assert (one.tried, one.verdict) == (two.tried, two.verdict)
    assert one.best_fixed_mean == two.best_fixed_mean


def test_too_few_queries_and_too_few_arms() -> None:
    few = guarded(tiny(), policy="knn")
    assert few.saved == "best-fixed" and not few.tried
    assert "12 queries are too few to estimate" in few.verdict and "at least 20" in few.verdict
    repeated = replace(separable(60), groups=[f"g{i % 12}" for i in range(60)])
    assert "12 queries are too few" in guarded(repeated, policy="knn").verdict
    alone = table(separable(40).embeddings, separable(40).rewards[:, :1])
    assert "no other arm" in guarded(alone, policy="knn").verdict


def test_failures_are_counted_and_never_attractive() -> None:
    """Arm 1 succeeds on every tenth query alone, and earns much there."""
    good = separable(80)
    rewards = good.rewards.copy()
    rewards[:, 1] = np.where(np.arange(80) % 10 == 0, 9.0, np.nan)
    rewards[3] = np.nan
    found = guarded(table(good.embeddings, rewards), policy="knn")
    assert found.left_out == (
        "1 rows on which every arm failed are left out; 71 failed answers count as the worst of "
        "their query"
    )
    assert found.queries == 79
    mass = found.probs.sum(axis=1)
    assert mass[3] == 0 and (np.delete(mass, 3) == 1).all()


def test_what_is_there_twice_is_refused() -> None:
    twice = separable(40).rows([*range(40), 7])
    with pytest.raises(PolicyError, match="the query 'q7' is in the table twice"):
        guarded(twice, policy="knn")
    again = replace(twice, rewards=np.vstack([twice.rewards[:40], [[1.0, 2.0, 3.0]]]))
    assert usable(again).failed == 0, "the same query measured again is no mistake"
    parted = replace(again, groups=[f"g{i}" for i in range(41)])
    with pytest.raises(PolicyError, match="'q7' is in two groups, 'g7' and 'g40'"):
        usable(parted)
    with pytest.raises(PolicyError, match="the query 'one' is in two groups, 'g0' and 'g1'"):
        replace(parted, queries=["one"] * 41)
    failed = table(np.zeros((30, 2), np.float32), np.full((30, 2), np.nan), ["a", "b"])
    with pytest.raises(PolicyError, match="every arm failed on every query"):
        guarded(failed)


def test_a_candidate_that_cannot_be_trained_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> policies.Fitted:
        raise PolicyError("training diverged in epoch 1")

    monkeypatch.setitem(policies.POLICIES, "knn", broken)
    monkeypatch.setattr("policies.selection.guard.LEARNERS", {"knn": {}, "regression": {}})
    found = guarded(separable(80))
    assert found.skipped == {"knn": "training diverged in epoch 1"}
    assert found.saved == "regression"
    with pytest.raises(PolicyError, match="diverged"):
        guarded(separable(80), policy="knn")


def test_candidates() -> None:
    data = banded()
    names = [one.name for one in candidates("auto", data)]
    assert names == ["binned by temperature", "binned by words", *LEARNERS]
    alike = with_features(separable(30), words=np.ones(30), temperature=np.arange(30))
    assert [c.name for c in candidates("knn", alike)] == ["binned by temperature", "knn"]
    greedy = np.arange(30) % 2
    both = with_features(separable(30), greedy=greedy, words=np.arange(30), temperature=1 - greedy)
    names = [c.name for c in candidates("knn", both)]
    assert names == ["binned by temperature", "binned by words", "knn"]
    load = {"temperature": greedy, "requests-running": np.arange(30) % 3}
    names = [c.name for c in candidates("knn", with_features(separable(30), **load))]
    assert names[2] == "binned by temperature and requests-running"
    asked = candidates("binned", data, {"feature": "words"})
    assert [c.name for c in asked] == ["binned by temperature", "binned by words"]
    with pytest.raises(NoSuchName, match="unknown policy 'guess'; known: auto, best-fixed"):
        candidates("guess", data)
    with pytest.raises(NoSuchName, match="unknown feature 'load'; known: temperature, words"):
        guarded(data, policy="binned", options={"feature": "load"})


@examples(25)
@given(seed=st.integers(0, 2**31), groups=st.integers(5, 40), tasks=st.integers(1, 4))
def test_folds_keep_groups_together_and_spread_tasks(seed: int, groups: int, tasks: int) -> None:
    rng = np.random.default_rng(seed)
    of = np.concatenate([np.arange(groups), rng.integers(groups, size=groups)])
    data = replace(
        table(np.zeros((len(of), 1), np.float32), np.zeros((len(of), 2)), ["a", "b"]),
        groups=[f"g{i}" for i in of],
        tasks=[f"t{i % tasks}" for i in of],
    )
    folds = folds_of(data, seed)
    assert len({(int(g), int(f)) for g, f in zip(of, folds, strict=True)}) == groups
    sizes = np.bincount(folds[:groups], minlength=5)
    assert sizes.max() - sizes.min() <= 1
    for task in range(tasks):
        each = np.bincount(folds[:groups][np.arange(groups) % tasks == task], minlength=5)
        assert each.max() - each.min() <= 1


def test_cross_fitting_never_sees_the_rows_it_judges() -> None:
    data = separable(50)
    folds = folds_of(data, 0)
    seen: list[int] = []

    def chooser(train: RewardTable, held: RewardTable) -> np.ndarray:
        assert not set(train.query_ids) & set(held.query_ids)
        assert len(train) + len(held) == 50
        seen.append(len(held))
        return np.eye(3)[np.arange(len(held)) % 3]

    probs = cross_fit(data, folds, chooser)
    assert seen == [10] * 5
    arms = probs.argmax(axis=1)
    np.testing.assert_array_equal(earned(data, probs), data.rewards[np.arange(50), arms])
    # the fixed arm is chosen without the rows that it is judged on
    rewards = np.zeros((50, 2))
    rewards[folds == 2, 1] = 9.0
    lopsided = table(np.zeros((50, 1), np.float32), rewards, ["a", "b"])
    assert (cross_fit(lopsided, folds, best_fixed)[folds == 2] == [1, 0]).all()


def test_of_too_few_queries_there_is_no_bound() -> None:
    """What one query in twenty shows is missed by 58 of them with a chance of more than 5%."""
    assert 0.95**MIN_BOUNDED_GROUPS < 0.05 < 0.95 ** (MIN_BOUNDED_GROUPS - 1)
    few, enough = (bounded(np.full(MIN_BOUNDED_GROUPS - less, 0.5)) for less in (1, 0))
    assert (few.low, few.high, few.above_zero) == (-np.inf, np.inf, False)
    assert few.needed == MIN_BOUNDED_GROUPS
    assert enough.low == enough.high == 0.5 and enough.needed == MIN_BOUNDED_GROUPS
    assert bounded(np.full(60, -0.5)).needed is None
    found = guarded(separable(40), policy="regression")
    assert found.saved == "best-fixed" and len(found.tried) == 1
    assert "40 queries are too few to say with confidence what a policy gains" in found.verdict
    assert f"at least {MIN_BOUNDED_GROUPS} (so far the best, regression: 0." in found.verdict


def test_queries_needed_settle_it() -> None:
    """As many draws as the figure says put the lower bound about at 0."""
    rng = np.random.default_rng(0)
    first = bounded(rng.normal(0.1, 1, size=400))
    drawn = rng.normal(first.mean, 1, size=(200, first.needed)).mean(axis=1)
    sure = drawn - 1.645 / np.sqrt(first.needed) > 0
    assert 0.35 < sure.mean() < 0.65


def test_verdicts() -> None:
    gains, unsure, worse = (
        bounded(np.array(pair * 40)) for pair in ([0.1, 0.3], [-1.0, 1.1], [-0.1, -0.3])
    )
    units = independent(80)
    said = verdict("knn", "small", {"knn": (gains, "0.2 (12%)")}, units, 3)
    assert re.fullmatch(
        r"Saved: knn\. It gains 0\.2 \(12%\) over the best fixed arm \(small\), and at least "
        r"0\.1[78]\d? \(95% confidence\)\.",
        said,
    )
    said = verdict(
        "best-fixed", "small", {"knn": (unsure, "0.05 (3%)"), "x": (worse, "-1")}, units, 3
    )
    assert "the best, knn, gains 0.05 (3%)" in said
    assert f"About {unsure.needed:,} queries would settle it; there are 80." in said
    said = verdict("best-fixed", "small", {"x": (worse, "-0.2")}, units, 3)
    assert said.endswith("(the best, x: -0.2); one arm is enough here.")


def test_band_edges_and_names() -> None:
    few = bins_of(np.array([0.7, 0.0, 1.0, 0.7], np.float32), most=8)
    assert few.names() == ["0", "0.7", "1"]
    assert few.of(np.array([-1, 0.3, 0.4, 0.84, 0.86, 2])).tolist() == [0, 0, 1, 1, 2, 2]
    many = bins_of(np.arange(100), most=8)
    assert np.bincount(many.of(np.arange(100))).tolist() == [25, 25, 25, 25]
    assert many.names() == ["below 24.75", "24.75 to 49.5", "49.5 to 74.25", "from 74.25"]
    heap = bins_of(np.array([0] * 90 + list(range(10))), most=8)
    assert heap.names() == ["all"], "most of them are the least: nothing to part at the quarters"


def test_a_band_of_few_queries_takes_the_best_fixed_arm() -> None:
    temperature = np.array([0.0] * 38 + [1.0] * 2)
    rewards = np.tile([1.0, 0.9, 0.0], (40, 1))
    rewards[38:, 1] = 1.3  # two queries do not outweigh ten at the mean of all
    data = with_features(table(np.zeros((40, 1), np.float32), rewards), temperature=temperature)
    assert policies.fit("binned", data).policy.choose(np.array([1.0])).arm == ARMS[0]
    bold = policies.fit("binned", data, prior=0.0).policy
    assert bold.choose(np.array([1.0])).arm == ARMS[1]
    assert bold.choose(np.array([0.0])).arm == ARMS[0]


def test_bins_of_two_features_hold_an_arm_for_each_pair(tmp_path: Path) -> None:
    """Where one arm is best in each of two bins of both, and another where they differ."""
    temperature, running = np.tile([0.0, 1.0], 60), np.repeat([0.0, 2.0, 3.0], 40)
    rewards = np.tile([0.5, 0.6, 0.0], (120, 1))
    rewards[(temperature == 1) & (running == 3), 0] = 2.0
    x = {"temperature": temperature, "requests-running": running}
    data = with_features(table(np.zeros((120, 1), np.float32), rewards), **x)
    policy = policies.fit("binned", data, second_feature="requests-running").policy
    again = policies.load(policy.save(tmp_path))
    for each in (policy, again):
        assert each.origin.features == ("temperature", "requests-running")
        found = [each.choose(np.array([t, r])).arm for t in (0, 1) for r in (0, 2, 3)]
        assert found == [ARMS[1]] * 5 + [ARMS[0]]
    with pytest.raises(PolicyError, match="reads temperature once"):
        policies.fit("binned", data, second_feature="temperature")
    with pytest.raises(NoSuchName, match="unknown feature 'load'"):
        policies.fit("binned", data, second_feature="load")


def test_of_near_ties_in_a_band_the_best_fixed_arm_is_taken() -> None:
    rng = np.random.default_rng(0)
    rewards = 1 + rng.normal(0, 0.1, (400, 3)) - np.array([0.0, 0.0, 1.0])
    temperature = np.repeat([0.0, 1.0], 200)
    rewards[:200, 0] += 0.05  # surely best at 0, and so on the whole
    rewards[200:, 1] += 0.005 - (rewards[200:, 1] - rewards[200:, 0]).mean()  # hardly at 1
    data = with_features(table(np.zeros((400, 1), np.float32), rewards), temperature=temperature)
    careful = policies.fit("binned", data, prior=0.0).policy
    bold = policies.fit("binned", data, prior=0.0, caution=0.0).policy
    assert [careful.choose(np.array([t])).arm for t in (0.0, 1.0)] == [ARMS[0], ARMS[0]]
    assert [bold.choose(np.array([t])).arm for t in (0.0, 1.0)] == [ARMS[0], ARMS[1]]


def test_regret_by_hand() -> None:
    rewards = np.array([[1.0, 2.0, 0.5], [1.0, 0.0, 3.0], [1.0, 2.0, 0.0], [1.0, np.nan, 0.0]])
    data = table(np.zeros((4, 1), np.float32), rewards)
    small = policies.fit("fixed", data, arm="small").policy
    found = regret(decisions(small, data), plain="autoregressive")  # the last query failed
    assert found.queries == 3
    assert found.mean == pytest.approx(1.0)  # 0, 3, 0
    assert found.gap_closed == pytest.approx(1 - 3 / 4)  # the best fixed arm is the first
    assert found.worse_than_plain == pytest.approx(1 / 3)
    assert regret(decisions(small, data)).worse_than_plain is None
    plain = policies.fit("fixed", data, arm="autoregressive").policy
    left = regret(decisions(plain, data), plain="autoregressive")
    assert left.worse_than_plain == 0 and left.mean == pytest.approx((1 + 2 + 1 + 0) / 4)
