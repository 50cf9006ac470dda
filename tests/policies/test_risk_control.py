"""Risk control: violated as rarely as it says where the truth is known, used where it can be."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from effort import FULL
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import table, with_features
from risk_control_splits import repeat_calibration
from scipy.stats import binom

import policies
from decoders.common.errors import DraftpickError
from policies import PolicyError, RewardTable
from policies.evaluation.units import Units
from policies.learners.exploring import ExploringPolicy
from policies.risk_control import RiskControlPolicy, with_temperature
from policies.risk_control.bounds import Risk, hoeffding_bentkus
from policies.risk_control.fitting import best_model
from policies.risk_control.report import losses_and_rewards
from policies.risk_control.thresholds import RiskCurve, calibrate, learn, parted

ARMS = ["plain", "copy", "bild", "cascade"]
LOSSLESS = ["plain", "copy"]


def world(n: int, seed: int = 0, lost: float = 1.0, temperature: float = 0.0) -> RewardTable:
    """The lossy arms are faster, and spoil answers of which the first input tells something.

    lost: times the chance of a spoilt answer. Spoilt ones lose all, the hardest case.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    chance = np.minimum(lost / (1 + np.exp(3 - 2 * x[:, :1])) * [1, 2], 1)  # [n, 2]
    losses = np.concatenate([np.zeros((n, 2)), rng.random((n, 2)) < chance], axis=1)
    speed = np.array([1.0, 1.5, 2.0, 2.3]) + 0.2 * x + 0.1 * rng.normal(size=(n, 4))
    made = with_features(table(x, speed, ARMS), temperature=np.full(n, temperature))
    return replace(made, losses=losses)


def controlled(table: RewardTable, **options: object) -> RiskControlPolicy:
    return policies.fit("risk-control", table, None, 0, lossless=LOSSLESS, **options).policy


def served(policy: RiskControlPolicy, table: RewardTable) -> np.ndarray:
    return policy.distribution(table.inputs).argmax(axis=1)


def true_loss(policy: RiskControlPolicy, table: RewardTable) -> float:
    return float(table.losses[np.arange(len(table)), served(policy, table)].mean())


def both(*tables: RewardTable) -> RewardTable:
    """Rows of several tables in one."""
    parts = {
        name: np.concatenate([getattr(t, name) for t in tables])
        for name in ("embeddings", "rewards", "features", "losses")
    }
    return replace(
        tables[0],
        query_ids=[f"{i}/{q}" for i, t in enumerate(tables) for q in t.query_ids],
        tasks=[task for t in tables for task in t.tasks],
        groups=[group for t in tables for group in t.groups],
        **parts,
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("model", ["ridge", "knn", "mean"])
@pytest.mark.parametrize("queries", [60, 200, 1000])
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_a_thousand_splits_keep_their_confidence(
    model: str, queries: int, confidence: float
) -> None:
    found = repeat_calibration(
        world(2000, lost=0.5),
        Risk(0.1, confidence),
        lossless=LOSSLESS,
        model=model,
        queries=queries,
    )
    most = binom.ppf(0.999, found.splits, 1 - confidence)
    assert found.splits == 1000
    assert found.violated * found.splits <= most


@pytest.mark.every(2)
@pytest.mark.parametrize("model", ["ridge", "knn", "mean"])
@pytest.mark.parametrize("queries", [30, 200])
def test_a_thousand_splits_keep_it_in_expectation(model: str, queries: int) -> None:
    found = repeat_calibration(
        world(2000, lost=0.5), Risk(0.1, None), lossless=LOSSLESS, model=model, queries=queries
    )
    assert found.loss <= 0.1 + 4 * 0.5 / np.sqrt(found.splits) * 0.1
    assert found.reward > found.lossless_reward


@pytest.mark.property
def test_whole_trainings_keep_it() -> None:
    """Everything learnt and calibrated anew from queries of their own. With as many
    inputs as queries to learn from, what is learnt fits those queries far too well."""

    def wide(n: int, seed: int) -> RewardTable:
        table, rng = world(n, seed), np.random.default_rng([seed, n])
        noise = rng.normal(size=(n, 96)).astype(np.float32)
        return replace(table, embeddings=np.concatenate([table.embeddings, noise], axis=1))

    truth, many = wide(4000, 1), 40 if FULL else 16
    losses = [
        true_loss(controlled(wide(200, seed), max_loss=0.1, confidence=0.8, model="ridge"), truth)
        for seed in range(100, 100 + many)
    ]
    assert sum(loss > 0.1 for loss in losses) <= binom.ppf(0.999, many, 0.2)
    assert np.mean(losses) > 0.02  # something is risked


def test_a_speed_up_that_the_error_of_costs_hides_is_not_taken() -> None:
    table = world(1000, lost=0.1)
    sure = controlled(table, max_loss=0.03).guarantee
    apart = np.zeros((5, len(table), 4))
    apart[0, :, 2:], apart[1, :, 2:] = 2.0, -2.0
    hidden = controlled(replace(table, repeats=table.rewards + apart), max_loss=0.03).guarantee
    assert sure.threshold is not None and hidden.threshold is None
    assert hidden.gain == sure.gain > 0
    assert hidden.gain_low is not None and hidden.gain_low < 0


def test_an_easy_table_uses_lossy_arms() -> None:
    table, truth = world(1000, lost=0.1), world(3000, seed=1, lost=0.1)
    policy = controlled(table, max_loss=0.03)
    told = losses_and_rewards(policy, truth, resamples=50)
    assert [row.arm for row in told] == [None, "copy", "bild", *policy.arms]
    rows = {row.name: row for row in told}
    assert rows["policy"].lossy > 0.8
    assert rows["policy"].loss.mean == true_loss(policy, truth) <= 0.03
    one, other, ours = (
        rows[name].reward.mean for name in ("lossless", "best-controlled", "policy")
    )
    assert one < other < ours
    assert rows["fixed/bild"].lossy == 1 and rows["fixed/plain"].lossy == 0
    assert "Guaranteed with 95% confidence" in str(policy.guarantee)
    assert "math" in str(policy.guarantee) and "other traffic voids" in str(policy.guarantee)


def test_the_model_is_the_one_that_pays() -> None:
    """Where all queries are alike one arm serves all of them."""
    table = world(600, lost=0.3)
    assert best_model(table, LOSSLESS, Risk(0.05), 300, 0) == "ridge"
    assert controlled(table).origin.options["model"] == "ridge"
    same = np.tile([1.0, 1.5, 2.0, 2.3], (600, 1)), np.tile([0.0, 0.0, 0.0, 1.0], (600, 1))
    alike = replace(table, rewards=same[0], losses=same[1])
    assert best_model(alike, LOSSLESS, Risk(0.1), 300, 0) == "mean"
    assert set(served(controlled(alike), table)) == {2}
    assert best_model(table.rows([0]), LOSSLESS, Risk(0.1), 300, 0) == "mean"


def test_in_expectation_allows_more_than_with_confidence() -> None:
    table, truth = world(400, lost=0.3), world(5000, seed=1, lost=0.3)
    sure = controlled(table, max_loss=0.05)
    mean = controlled(table, max_loss=0.05, in_expectation=True)
    assert 0 < true_loss(sure, truth) < true_loss(mean, truth)
    assert mean.guarantee.confidence is None
    assert "on average over calibrations" in str(mean.guarantee)


def test_a_bound_that_no_arm_keeps() -> None:
    table = world(400)
    spoilt = replace(table, losses=np.tile([0.0, 0, 1, 1], (400, 1)))
    policy = controlled(spoilt, max_loss=0.05)
    assert policy.guarantee.threshold is None
    assert policy.guarantee.loss == 0
    assert policy.guarantee.best_controlled == policy.guarantee.best_lossless == "copy"
    assert set(served(policy, world(500, seed=1))) <= {0, 1}
    assert "none that is faster is shown" in str(policy.guarantee)
    assert "bild 1.000" in str(policy.guarantee)


def test_lossy_arms_that_are_no_faster_are_left_out() -> None:
    table = world(400, lost=0.1)
    slow = table.rewards - [0, 0, 1.5, 1.5]
    policy = controlled(replace(table, rewards=slow), max_loss=0.2)
    assert policy.guarantee.threshold is None
    assert set(served(policy, world(500, seed=1))) <= {0, 1}


def test_a_gain_that_is_noise_is_no_gain() -> None:
    """Rewards that nothing predicts: the best lossless arm for every query, and no loss."""
    table, rng = world(400, lost=0.1), np.random.default_rng(5)
    policy = controlled(replace(table, rewards=rng.normal(size=(400, 4))), max_loss=0.2)
    assert policy.guarantee.gain_low is None or policy.guarantee.gain_low <= 0
    assert policy.guarantee.threshold is None
    best = policy.arms.index(policy.guarantee.best_lossless)
    assert set(served(policy, world(500, seed=1))) == {best}


def test_requests_above_temperature_0_get_lossless_arms() -> None:
    greedy = world(400, lost=0.2)
    hot = replace(greedy, features=np.ones((400, 1), dtype=np.float32))
    policy = controlled(both(greedy, hot), max_loss=0.1)
    assert policy.guarantee.sampled == policy.guarantee.queries == 200
    truth = world(1000, seed=1, lost=0.2)
    assert (served(policy, truth) > 1).mean() > 0.5
    warm = replace(truth, features=np.full((1000, 1), 0.3, dtype=np.float32))
    assert set(served(policy, warm)) <= {0, 1}
    chosen = policy.choose(warm.inputs[0])
    assert chosen.arm in LOSSLESS
    assert len(chosen.scores) == 4 and max(chosen.scores) > chosen.scores[chosen.index]
    rows = losses_and_rewards(policy, both(truth, warm), resamples=50)
    assert {row.loss.queries for row in rows} == {1000}


def test_losses_above_temperature_0_are_not_looked_at() -> None:
    greedy = world(400, lost=0.2)
    hot = replace(greedy, features=np.ones((400, 1), dtype=np.float32))
    spoilt = replace(hot, losses=np.tile([0.0, 0, 1, np.nan], (400, 1)))
    tables = both(greedy, hot), both(greedy, spoilt)
    one, other = (controlled(each, max_loss=0.1).guarantee.threshold for each in tables)
    assert one == other is not None


def test_sampled_rows_do_not_dilute_the_calibration() -> None:
    learning, held = parted(world(400, lost=0.2), 0.5, 0)
    hot = replace(held, features=np.ones((200, 1), dtype=np.float32))
    grid = learn(learning, LOSSLESS)
    alone, mixed = calibrate(grid, held), calibrate(grid, both(held, hot))
    assert alone.losses.max() == 1
    np.testing.assert_array_equal(mixed.losses, alone.losses)


def test_rows_of_one_query_count_once() -> None:
    table = world(100)
    with pytest.raises(PolicyError, match=r"at least 59 queries .* there are 50; collect"):
        controlled(both(table, table, table), max_loss=0.05)


def test_a_failed_lossy_arm_loses_everything() -> None:
    table = world(400, lost=0.2)
    failed = np.array(table.losses)
    failed[::2, 2:] = np.nan
    policy = controlled(replace(table, losses=failed), max_loss=0.1)
    assert policy.guarantee.failed > 150
    assert policy.guarantee.arm_losses["bild"] > 0.4


def test_the_origin_holds_the_guarantee(tmp_path: object) -> None:
    policy = controlled(world(400, lost=0.2), max_loss=0.1, confidence=0.9)
    told = policy.origin.options["guarantee"]
    assert (told["max_loss"], told["confidence"]) == (0.1, 0.9)
    assert told["method"] == "learn then test"
    assert told["queries"] == sum(told["tasks"].values()) == 200
    assert 0 < told["loss"] <= 0.1
    assert policies.load(policy.save(str(tmp_path))).guarantee == policy.guarantee


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"losses": None}, {}, "needs the arms' losses"),
        ({"features": np.zeros((100, 0)), "feature_names": ()}, {}, "with_temperature"),
        ({}, {"lossless": []}, "needs a lossless arm"),
        ({}, {"lossless": [*LOSSLESS, "bild"]}, "bild is declared lossless but has lost"),
        ({"losses": np.zeros((100, 4))}, {"lossless": ARMS}, "every arm is lossless"),
        ({}, {"lossless": ["guess"]}, "unknown arm 'guess'"),
        ({}, {"max_loss": 0.0}, "leave the lossy arms out"),
        ({}, {"confidence": 1.0}, "the confidence must be above 0"),
        ({}, {"model": "forest"}, "known: auto, knn, mean, ridge"),
        ({}, {"calibration_share": 1.0}, "share to calibrate on"),
        ({}, {}, "needs at least 59 .* there are 50; collect at least 118 to train on, of which"),
        ({}, {"in_expectation": True, "max_loss": 0.01}, "in expectation needs at least 99"),
        ({"features": np.ones((100, 1))}, {}, "there are 0; collect"),
    ],
)
def test_mistakes_are_sentences(change: dict, options: dict, says: str) -> None:
    given = {"lossless": LOSSLESS, "in_expectation": "model" in options} | options
    with pytest.raises(DraftpickError, match=says):
        policies.fit("risk-control", replace(world(100), **change), **given)


def test_a_table_without_temperatures() -> None:
    plain = replace(world(10), features=np.zeros((10, 0)), feature_names=())
    made = with_temperature(plain)
    assert made.feature_names == ("temperature",) and not made.features.any()
    assert with_temperature(made) is made
    hot = replace(plain, query_ids=[f"{query}@1" for query in plain.query_ids], groups=plain.groups)
    with pytest.raises(PolicyError, match="some rows are not of greedy answers"):
        with_temperature(hot)


def test_exploring_draws_lossless_arms_alone() -> None:
    table = world(400)
    policy = controlled(table, max_loss=0.5)
    rows = table.read_by(policy.origin)
    drawn = ExploringPolicy(policy, 0.3).distribution(rows)
    chosen = policy.distribution(rows)
    lossy = [i for i, arm in enumerate(policy.arms) if arm not in policy.lossless]
    assert chosen[:, lossy].sum() > 0  # or there would be nothing to see
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    np.testing.assert_allclose(drawn[:, lossy], 0.7 * chosen[:, lossy])


# -- the two calibrations, by slow formulas and by every calibration set ---------------------------


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
WORLD = np.array([[0.0, 0.0, 0.0, 0.6], [0.0, 0.0, 0.9, 0.9], [0.1, 0.3, 0.2, 1.0]])
CHANCES = np.array([0.5, 0.3, 0.2])


def samples(n: int) -> list[tuple[np.ndarray, float]]:
    """Every sample of n queries as counts of kinds, and its chance."""
    found = []
    for counts in itertools.product(range(n + 1), repeat=3):
        if sum(counts) == n:
            ways = math.factorial(n) / math.prod(math.factorial(c) for c in counts)
            found.append((np.array(counts), ways * float(np.prod(CHANCES ** np.array(counts)))))
    return found


def selected(risk: Risk, counts: np.ndarray, sizes: tuple[int, ...]) -> int:
    """Calibrate on so many groups of each kind, which have so many queries."""
    kinds = np.repeat(np.arange(3), counts)  # [n]
    group_of = np.repeat(np.arange(len(kinds)), np.array(sizes)[kinds])
    losses = np.insert(WORLD, 0, 0.0, axis=1)[kinds[group_of]]
    units = Units(np.arange(len(group_of)), group_of)
    return RiskCurve(losses, losses, losses, ["t"] * len(losses), units).selected(risk)


SIZES = pytest.mark.parametrize("sizes", [(1, 1, 1), (40, 1, 1)])


@SIZES
@pytest.mark.parametrize("alpha", [0.1, 0.15, 0.2, 0.3])
@pytest.mark.parametrize("n", [5, 12])
def test_the_expected_loss_over_every_calibration(
    n: int, alpha: float, sizes: tuple[int, ...]
) -> None:
    risk, truth = Risk(alpha, None), np.concatenate([[0.0], CHANCES @ WORLD])
    assert sum(chance for _, chance in samples(n)) == pytest.approx(1)
    expected = sum(chance * truth[selected(risk, counts, sizes)] for counts, chance in samples(n))
    assert expected <= alpha


@SIZES
@pytest.mark.parametrize("alpha", [0.1, 0.15, 0.2, 0.3])
def test_how_often_it_is_broken_over_every_calibration(
    alpha: float, sizes: tuple[int, ...]
) -> None:
    risk, truth = Risk(alpha, 0.8), np.concatenate([[0.0], CHANCES @ WORLD])
    violated = sum(
        chance for counts, chance in samples(30) if truth[selected(risk, counts, sizes)] > alpha
    )
    assert violated <= 0.2


@pytest.mark.parametrize("given", [(0.0, 0.9), (1.0, 0.9), (-0.1, None), (0.1, 0.0), (0.1, 1.0)])
def test_numbers_out_of_range(given: tuple[float, float | None]) -> None:
    with pytest.raises(PolicyError, match="above 0 and below 1"):
        Risk(*given)
