"""The fleet simulation against queueing theory, where it knows the answer."""

from __future__ import annotations

import json
from importlib import import_module
from math import factorial
from pathlib import Path
from typing import Any

import fleet_model as model
import numpy as np
import pytest
from effort import examples
from fleet_model import DISPATCHES, Fleet, Load, Served, Work, simulate
from hypothesis import given
from hypothesis import strategies as st

from collect.sweeps.batch import SweepOptions
from decoders.common.errors import DraftpickError


def poisson(rate: float, n: int, rng: np.random.Generator) -> Any:
    return np.cumsum(rng.exponential(1 / rate, n))


def served(fleet: Fleet, rate: float, rounds: Any, seed: int = 0) -> Served:
    """Poisson arrivals of requests with these rounds, the first tenth left out."""
    rng = np.random.default_rng(seed)
    found = simulate(fleet, poisson(rate, len(rounds), rng), lambda i, _: Work(rounds[i]), rng)
    skip = len(rounds) // 10
    return Served(*(part[skip:] for part in vars(found).values()))


def erlang_c(servers: int, load: float) -> float:
    """The chance of waiting in M/M/c; load: arrivals over one server's rate."""
    last = load**servers / factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("servers", "use"), [(1, 0.6), (4, 0.8), (20, 0.85)])
def test_one_queue_waits_as_erlang_says(servers: int, use: float) -> None:
    rounds = np.random.default_rng(1).exponential(size=20_000)
    fleet = Fleet(servers, lambda rows: 1.0, dispatch="central")
    found = served(fleet, servers * use, rounds)
    chance = erlang_c(servers, servers * use)
    assert found.waited.mean() == pytest.approx(chance / (servers * (1 - use)), rel=0.12)
    assert (found.waited > 0).mean() == pytest.approx(chance, rel=0.06)


def test_two_choices_shorten_queues_as_mitzenmacher_says() -> None:
    """Mean time in the system of many queues, sum of use^(2^i - 2) (Mitzenmacher, 2001)."""
    use, rounds = 0.9, np.random.default_rng(1).exponential(size=20_000)
    found = served(Fleet(100, lambda rows: 1.0), 100 * use, rounds)
    expected = sum(use ** (2**i - 2) for i in range(1, 12))
    assert found.took.mean() == pytest.approx(expected, rel=0.08)
    alone = served(Fleet(100, lambda rows: 1.0, dispatch="random"), 100 * use, rounds)
    assert alone.took.mean() > 2 * found.took.mean()


def test_a_batch_whose_pass_costs_by_the_row_shares_its_processor() -> None:
    """M/G/1 with processor sharing: 1 / (1 - use) whatever the distribution of work."""
    rounds = np.random.default_rng(1).exponential(size=20_000)
    found = served(Fleet(1, lambda rows: rows, most=10_000), 0.7, rounds)
    assert found.took.mean() == pytest.approx(1 / (1 - 0.7), rel=0.1)
    assert not found.waited.any()


def curved(rows: float) -> float:
    """Seconds of a pass: steps of four rows up to 17, then a straight line."""
    return 1.0 + 0.5 * (min(rows, 17) - 1) // 4 + 0.2 * max(0.0, rows - 17)


def shares_of(**widths: float) -> Any:
    found = np.zeros(18)
    for width, share in widths.items():
        found[int(width[1:]) - 1] = share
    return found


def test_a_pass_is_priced_width_by_width() -> None:
    """A copy of 16 tokens in one round of ten costs more than a token or two in each."""
    shares = shares_of(w1=0.9, w17=0.1)
    fleet = Fleet(1, curved, widest=17)
    alone = simulate(
        fleet, [0.0], lambda i, _: Work(10.0, 1.6, widths=shares), np.random.default_rng(0)
    )
    assert alone.done == pytest.approx([9 * curved(1) + curved(17)])
    assert alone.done[0] > 10 * curved(2.6) + 1


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 18])
def test_widths_of_a_batch_add_up_by_chance(count: int) -> None:
    """Against all sums enumerated; the line goes on from 17 rows, however many add up."""
    kinds = [shares_of(w1=0.7, w3=0.3), shares_of(w2=1.0), shares_of(w1=0.5, w5=0.2, w18=0.3)]
    works = [Work(1.0, widths=kinds[i % 3]) for i in range(count)]
    sums = {0: 1.0}
    for work in works:
        more: dict[int, float] = {}
        for rows, chance in sums.items():
            for i in np.flatnonzero(work.widths):
                more[rows + i + 1] = more.get(rows + i + 1, 0.0) + chance * work.widths[i]
        sums = more
    mean = sum(rows * chance for rows, chance in sums.items())
    passes = model.Passes(curved, 17)
    exact = sum(curved(rows) * chance for rows, chance in sums.items())
    assert passes.together(mean, works) == pytest.approx(exact)


def test_a_width_that_nobody_counted_lies_on_the_two_around_its_mean() -> None:
    assert model.between(1.25).tolist() == [0, 0.75, 0.25] and model.between(2.0)[2] == 1
    assert model.Passes(curved, 17).together(2.25, [Work(1.0, 1.25)]) == pytest.approx(
        0.75 * curved(2) + 0.25 * curved(3)
    )


def test_drafting_is_paid_once_a_round_by_all_who_use_the_arm() -> None:
    fleet = Fleet(1, lambda rows: rows, draft_s=(0.0, 10.0), most=4)
    works = [Work(2, drafted=3, arm=1), Work(2, drafted=1, arm=1)]
    found = simulate(fleet, [0.0, 0.0], lambda i, _: works[i], np.random.default_rng(0))
    assert found.done == pytest.approx([2 * (6 + 2 * 10)] * 2)  # 4 + 2 rows, 2 drafted on average


def test_reading_a_prompt_stops_the_others() -> None:
    fleet = Fleet(1, lambda rows: 1.0, most=4)
    works = [Work(4), Work(1, prompt_s=5)]
    found = simulate(fleet, [0.0, 2.0], lambda i, _: works[i], np.random.default_rng(0))
    assert found.done == pytest.approx([9, 8])


def test_an_arm_can_be_chosen_by_the_load() -> None:
    seen = []

    def work_of(number: int, load: Load) -> Work:
        seen.append((load.requests, sum(load.users)))
        return Work(10.0)

    fleet = Fleet(1, lambda rows: 1.0, most=2)
    simulate(fleet, [0.0, 1.0, 2.0], work_of, np.random.default_rng(0))
    assert seen == [(1, 0), (2, 1), (2, 2)]


@examples(60)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.floats(0, 4)), min_size=1),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(DISPATCHES),
)
def test_everybody_is_served_in_time_and_no_sooner_than_alone(
    asked: list[tuple[float, float, float]], replicas: int, most: int, dispatch: str
) -> None:
    arrivals = np.cumsum([gap for gap, _, _ in asked])
    works = [Work(rounds, drafted) for _, rounds, drafted in asked]
    fleet = Fleet(replicas, lambda rows: 0.5 + 0.1 * rows, (0.2,), most, dispatch)

    def once() -> Served:
        return simulate(fleet, arrivals, lambda i, _: works[i], np.random.default_rng(3))

    found = once()
    alone = [w.rounds * (0.5 + 0.1 * (1 + w.drafted)) for w in works]
    assert (found.started >= found.arrived).all()
    assert (found.done - found.started >= np.array(alone) - 1e-6).all()
    assert (found.done == once().done).all()  # the same seed, the same day
    if most == 1:
        costs = [w.rounds * (0.5 + 0.1 * (1 + w.drafted) + 0.2 * w.drafted) for w in works]
        assert found.done - found.started == pytest.approx(costs)


def test_the_strength_of_a_guess_is_not_chosen_by_a_query_s_other_rows() -> None:
    """Nothing can be known of these queries but by the twin of a row, at another temperature."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(80, 40)), 2, axis=0)
    y = np.repeat(rng.normal(size=(80, 2)), 2, axis=0)
    groups = [f"q{i // 2}" for i in range(160)]
    guess = import_module("fleet").guessed_from(x, y, y, groups, 0)
    assert np.square(guess - y).mean() < 1.1 * y.var()


def test_the_script_finds_what_each_choice_carries(
    tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a collection where one arm needs a quarter of the passes, and another drafts in vain."""
    fakes: Any = import_module("collect_fakes")
    rewards, out = tmp_path / "rewards", tmp_path / "fleet"
    fakes.sweep(fakes.FakeEngine(), fakes.make_queries(2), rewards, SweepOptions(max_new_tokens=8))
    words = ["--out", out, "--replicas", 4, "--requests", 60, "--most", 4]
    words += ["--points", 2, "--bound", 1.5, "--check", 8]
    script("fleet", rewards, *words)
    told = json.loads((out / "fleet.json").read_text())
    rates = told["requests_per_s"]
    assert (told["rows"], told["left_out"], told["best_fixed"]) == (12, 0, "small")
    assert rates["small"] > 1.3 * rates["plain"] > 1.3 * rates["ngram"]
    assert rates["routed"] == rates["routed with load"] == rates["small"]
    assert told["check"]["small"]["requests"] == pytest.approx(480, rel=0.2)
    assert (out / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert "| small |" in capsys.readouterr().out
    with pytest.raises(DraftpickError, match="holds no collected rewards"):
        script("fleet", tmp_path, *words)
