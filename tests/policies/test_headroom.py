"""Headroom: what there is to gain, on tables where it is known, and what is said about it."""

from dataclasses import replace

import numpy as np
import pytest
from policy_tables import ARMS, separable, table, with_features

import policies
from decoders.common.errors import NoSuchName
from policies import PolicyError, RewardTable
from policies.evaluation.bounds import Gain
from policies.selection.advice import ArmWins, Choice, Headroom, Part, advice
from policies.selection.guard import guarded
from policies.selection.headroom import headroom, oracle_of


def repeated(times: int, spread: float, seed: int = 0, queries: int = 200) -> RewardTable:
    """Arms of equal worth 1, each query measured several times with noise."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(queries), times)
    x = rng.normal(size=(queries, 3)).astype(np.float32)[of]
    made = table(x, 1 + rng.normal(scale=spread, size=(len(of), 3)))
    return replace(made, groups=[f"g{i}" for i in of])


def test_halves_take_the_optimism_of_noise_off() -> None:
    noisy = repeated(4, 0.3)
    found = oracle_of(noisy)
    assert (found.repeated, found.single) == (200, 0)
    error = found.values.std() / np.sqrt(200)
    assert abs(found.values.mean() - 1) < 3 * error, "no arm is better than another"
    assert noisy.rewards.max(axis=1).mean() > 1.2, "the maximum believes the noise"
    once = oracle_of(repeated(1, 0.3))
    assert (once.repeated, once.single) == (0, 200) and once.values.mean() > 1.2


def test_halves_keep_what_is_real() -> None:
    data = separable(60)
    twice = data.rows(np.repeat(np.arange(60), 2))
    np.testing.assert_allclose(oracle_of(twice).values, twice.rewards.max(axis=1))
    temperatures = with_features(
        replace(twice, query_ids=[f"r{i}" for i in range(120)]), temperature=np.arange(120) % 2
    )
    apart = oracle_of(temperatures)
    assert (apart.repeated, apart.single) == (0, 120), "another temperature is no repeat"


def test_three_repeats_by_enumeration() -> None:
    """With three repeats the halves have one and two rows: one of three partings was drawn."""
    rewards = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 1.0]])
    data = table(np.zeros((3, 1), np.float32), rewards, ["a", "b"])
    found = oracle_of(replace(data, groups=["g"] * 3)).values
    possible = []
    for alone in range(3):
        rest = [i for i in range(3) if i != alone]
        pair = rewards[rest].mean(axis=0)
        possible.append((pair[rewards[alone].argmax()] + rewards[alone, pair.argmax()]) / 2)
    assert min(abs(found[0] - value) for value in possible) < 1e-12
    assert len(set(found.tolist())) == 1


def test_a_learner_closes_the_gap_of_a_table_with_structure() -> None:
    found = headroom(separable(300))
    by_name = {one.name: one for one in found.choices}
    assert [one.kind for one in found.choices] == ["fixed", "task", "learner", "learner", "oracle"]
    assert by_name["oracle"].mean == pytest.approx(separable(300).rewards.max(axis=1).mean())
    assert by_name["oracle"].gap_share == pytest.approx(1)
    assert by_name["ridge"].gain.above_zero and by_name["ridge"].gap_share > 0.8
    assert not by_name["best by task"].gain.above_zero
    best = separable(300).rewards.mean(axis=0).max()
    assert by_name["best fixed"].mean == pytest.approx(best)
    for one in found.choices:
        assert one.low <= one.mean <= one.high
        assert sum(one.arms.values()) == pytest.approx(1)
    assert "Route by the query's embedding: ridge gains" in found.advice[0]
    assert all(arm in found.advice[0] for arm in ARMS)
    assert sum(arm.wins for arm in found.arms) == pytest.approx(1)
    shares = [part.gap_share for part in found.parts]
    assert sum(share for share in shares if share is not None) == pytest.approx(1)
    assert {(part.by, part.name) for part in found.parts} == {("task", "math"), ("task", "qa")}


def test_weights_decide_which_arm_is_best() -> None:
    """One arm is best alone, another at load, which traffic has three times as often."""
    loaded = np.arange(240) % 2 == 1
    rewards = np.where(loaded[:, None], [1.0, 1.5, 0.5], [2.0, 1.0, 0.5])
    data = table(separable(240).embeddings, rewards)
    data = with_features(data, **{"requests-running": loaded})
    data = replace(data, groups=[f"q{i // 2}" for i in range(240)])
    weighted = replace(data, weights=np.where(loaded, 3.0, 1.0))
    assert headroom(data).best_fixed == ARMS[0] and data.digest != weighted.digest
    found = headroom(weighted)
    assert found.best_fixed == guarded(weighted, policy="knn").best_fixed == ARMS[1]
    assert [one.mean for one in found.arms] == pytest.approx([1.25, 1.375, 0.5])
    assert found.arms[1].wins == pytest.approx(0.75)
    assert (found.choices[-1].mean, found.single) == (pytest.approx(1.625), 240)
    best = policies.report(policies.fit("best-fixed", weighted).policy, weighted)["greedy"]
    assert (best.mean, best.queries) == (pytest.approx(1.375), 120)
    with pytest.raises(PolicyError, match="weight is no number above 0"):
        replace(data, weights=np.zeros(240))


def test_the_temperature_is_found() -> None:
    rng = np.random.default_rng(0)
    temperature = np.arange(120) % 2
    rewards = 1 + rng.normal(scale=0.1, size=(120, 3))
    rewards[:, 0] -= 0.8
    rewards[:, 1] += np.where(temperature > 0, 0.3, -0.3)
    plain = table(rng.normal(size=(120, 3)).astype(np.float32), rewards)
    data = with_features(plain, temperature=temperature, words=rng.integers(5, 90, 120))
    found = headroom(data)
    assert found.advice[0].startswith("Route by temperature: best by temperature gains ")
    assert "It takes small (50%), ngram (50%)." in found.advice[0]
    assert found.advice[-2] == "Never the best arm: autoregressive."
    bins = {(p.by, p.name): p.arm for p in found.parts if p.by == "temperature"}
    assert bins == {("temperature", "0"): "ngram", ("temperature", "1"): "small"}
    names = [one.name for one in headroom(data, by=["words"]).choices]
    assert "best by words" in names and "best by temperature" not in names


def test_temperature_and_load_are_looked_at_together() -> None:
    """Where neither alone says it: one arm is best in two of four settings that lie crosswise."""
    rng = np.random.default_rng(0)
    temperature, running = np.arange(160) % 2, np.arange(160) // 2 % 2
    rewards = 1 + rng.normal(scale=0.1, size=(160, 3))
    rewards[:, 0] -= 0.8
    rewards[:, 1] += np.where(temperature == running, 0.3, -0.3)
    plain = table(rng.normal(size=(160, 3)).astype(np.float32), rewards)
    data = with_features(plain, temperature=temperature, **{"requests-running": running})
    found = headroom(data)
    assert found.advice[0].startswith("Route by temperature and requests-running: best by ")
    names = [one.name for one in headroom(data, by=["temperature"]).choices]
    assert "best by temperature and requests-running" not in names


def test_arms_that_are_alike_need_another_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    base = np.where(np.arange(80) % 2, 1.2, 2.0)[:, None]  # qa is slow with every arm
    alike = headroom(table(x, base * (1 + 0.001 * rng.normal(size=(80, 3)))))
    assert alike.advice[0].startswith(f"One arm is enough: {alike.best_fixed}.")
    assert "the arms are too similar" in alike.advice[1]
    assert (
        "a drafter that is good at qa: there even the best arm of every query earns only 1.2"
        in (alike.advice[1])
    )
    ahead = headroom(table(x, base * [1.0, 1.5, 1.2]))
    assert "small is the best arm of 100% of the rows" in ahead.advice[1]
    assert ahead.advice[2] == "Never the best arm: autoregressive, ngram."


def choice(name: str, kind: str, gain: float, low: float, needed: int | None = 90) -> Choice:
    made = Gain(gain, low, gain + 1, 100, needed)
    return Choice(name, kind, 1 + gain, 0.9, 1.1, made, 100 * gain, 0.5, {"a": 0.75, "b": 0.25})


ORACLE = choice("oracle", "oracle", 0.2, 0.1)
NOTHING = choice("ridge", "learner", -0.01, -0.1, None)
FIXED = choice("best fixed", "fixed", 0.0, 0.0)
WINS = [ArmWins("a", 1.0, 0.5, 0.1), ArmWins("b", 1.0, 0.5, 0.1)]
QA = Part("task", "qa", 50, "a", 1.0, 1.0, 1.1, 0.5)
FOUND = Headroom(
    reward="",
    queries=100,
    groups=100,
    best_fixed="a",
    choices=[FIXED, NOTHING, ORACLE],
    parts=[QA, replace(QA, name="math", oracle=1.3)],
    arms=WINS,
    repeated=0,
    single=100,
    optimistic=False,
    draws=0,
    oracle_at_most=1.2,
    left_out="",
    advice=[],
)


def having(*choices: Choice) -> Headroom:
    return replace(FOUND, choices=[FIXED, *choices])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (FOUND, "no feature of a query predicts it: no choice gains anything"),
        (
            having(choice("kNN", "learner", 0.05, -0.01, 900), ORACLE),
            "the best choice, kNN, gains 5.00%. About 900 queries would settle it; there are 100. "
            "Until then one arm is enough: a.",
        ),
        (
            having(choice("best by task", "task", 0.1, 0.05), NOTHING, ORACLE),
            "the best arm by task gains 10.00% over the best fixed arm (a), at least 5.00%, and "
            "50% of what the best arm of every query would, but no input of a policy",
        ),
        (
            having(
                choice("best by words", "feature", 0.04, 0.01),
                choice("kNN", "learner", 0.1, 0.05),
                ORACLE,
            ),
            "Route by words: best by words gains 4.00% over the best fixed arm (a), at least "
            "1.00%, and 20% of what the best arm of every query would. kNN, of the query's "
            "embedding, is better: it gains 10.00%, at least 5.00%. It takes a (75%), b (25%).",
        ),
        (having(choice("oracle", "oracle", 0.01, 0)), "One arm is enough: a."),
        (replace(FOUND, optimistic=True), "The oracle is optimistic"),
        (
            replace(FOUND, arms=[WINS[0], replace(WINS[1], wins=0.0)]),
            "Never the best arm: b.",
        ),
    ],
)
def test_advice(found: Headroom, says: str) -> None:
    assert says in " ".join(advice(found, 0.3))


def test_noise_that_cannot_be_taken_off_is_said() -> None:
    assert headroom(replace(repeated(1, 0.1), timed=True)).optimistic
    assert not headroom(replace(repeated(2, 0.1), timed=True)).optimistic
    assert not headroom(repeated(1, 0.1)).optimistic


def test_one_drawn_answer_a_query_is_noise() -> None:
    """Arms that are equal in expectation: what is drawn at a temperature makes one of them best."""
    data = repeated(1, 0.1)
    hot = with_features(data, temperature=np.arange(200) % 2)
    found = headroom(hot)
    assert found.optimistic and found.choices[-1].gain.mean > 0.05
    assert "one seed at a temperature above 0" in " ".join(found.advice)
    assert not headroom(with_features(data, temperature=np.zeros(200))).optimistic


def test_a_share_of_time_saved_is_told_in_points_and_in_speed() -> None:
    fixed = replace(FIXED, mean=0.005)
    saved = replace(FOUND, reward="time-saved@4")
    sure = [choice("best by words", "feature", 0.094, 0.05), choice("oracle", "oracle", 0.2, 0.1)]
    said = " ".join(advice(replace(saved, choices=[fixed, *sure]), 0.3))
    assert "gains 9.40 points (10.43% faster) over the best fixed arm" in said
    small = replace(saved, choices=[fixed, NOTHING, choice("oracle", "oracle", 0.015, 0.01)])
    assert "One arm is enough" in " ".join(advice(small, 0.3))
    assert "One arm" not in " ".join(advice(replace(small, reward=""), 0.3))[:20]


def test_what_is_refused() -> None:
    with pytest.raises(NoSuchName, match="unknown feature 'load'; known: none"):
        headroom(separable(40), by=["load"])
    with pytest.raises(PolicyError, match=r"10 queries are too few .* at least 20"):
        headroom(separable(10))
    alone = table(separable(40).embeddings, separable(40).rewards[:, :1])
    with pytest.raises(PolicyError, match="one arm, autoregressive, so that there is nothing"):
        headroom(alone)


def test_failures_are_said() -> None:
    rewards = separable(40).rewards.copy()
    rewards[0], rewards[1, 0] = np.nan, np.nan
    found = headroom(table(separable(40).embeddings, rewards))
    assert found.queries == 39
    assert found.left_out.startswith("1 rows on which every arm failed are left out; 1 failed")
