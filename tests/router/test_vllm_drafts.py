"""How many drafted tokens pay in a step, and what a step costs."""

import itertools

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from router.engines.vllm.step_costs import StepCosts, slots

ROWS = st.lists(st.lists(st.floats(0.01, 1.0), max_size=3), min_size=1, max_size=3)


@examples(300)
@given(
    rows=ROWS,
    base=st.floats(0.1, 5.0),
    a_token=st.floats(0.0, 2.0),
    fixed=st.lists(st.floats(0, 1), max_size=3),
)
def test_slots_give_the_most_tokens_a_second(
    rows: list[list[float]], base: float, a_token: float, fixed: list[float]
) -> None:
    rows = [list(itertools.accumulate(each, lambda a, b: a * b)) for each in rows]

    def rate(cuts: tuple[int, ...]) -> float:
        tokens = len(rows) + sum(fixed)
        tokens += sum(sum(each[:cut]) for each, cut in zip(rows, cuts, strict=True))
        return tokens / (base + a_token * (len(rows) + len(fixed) + sum(cuts)))

    best = max(map(rate, itertools.product(*(range(len(each) + 1) for each in rows))))
    assert rate(tuple(slots(rows, (base, a_token), fixed))) == pytest.approx(best)


def test_what_a_step_costs_is_found_and_found_again() -> None:
    costs, chance = StepCosts(), np.random.default_rng(0)
    assert costs.line == (1.0, 0.03)

    def run(base: float, a_token: float) -> tuple[float, float]:
        for _ in range(3000):
            tokens = int(chance.integers(1, 40))
            costs.observe(tokens, (base + a_token * tokens) * chance.uniform(0.95, 1.05))
            if chance.random() < 0.02:
                costs.observe(tokens, 100.0)  # held up by something else
        return costs.line

    assert run(0.1, 0.002) == pytest.approx((0.1, 0.002), rel=0.1)
    assert run(0.05, 0.004) == pytest.approx((0.05, 0.004), rel=0.15)


def test_a_load_that_comes_at_once_and_stays_is_believed() -> None:
    costs = StepCosts()
    for _ in range(400):
        costs.observe(1, 0.059)
    for _ in range(7):
        costs.observe(64, 0.045 + 0.014 * 64)
    assert costs.usual == pytest.approx(0.059)  # held up so far
    for _ in range(60):
        costs.observe(64, 0.045 + 0.014 * 64)
    assert costs.line == pytest.approx((0.045, 0.014), rel=0.05)
    chances = [[0.5, 0.25, 0.12]] * 64
    assert slots(chances, costs.line) == [0] * 64


def test_steps_that_are_all_alike_teach_nothing_of_a_token_more() -> None:
    costs = StepCosts(a_token=0.5)
    for _ in range(200):
        costs.observe(4, 3.0)
    assert costs.line == pytest.approx((1.0, 0.5))
