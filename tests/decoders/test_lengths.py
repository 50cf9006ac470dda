"""How many tokens to draft."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from decoders.costs.pass_costs import best_length
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.lengths import MEASURED, RETRY, AdaptiveLength, FixedLength, ScheduledLength
from decoders.protocols import DraftLength
from decoders.records import StepStats


@pytest.mark.parametrize("acceptance", np.linspace(0, 1, 21))
@pytest.mark.parametrize("cost", [0.01, 0.05, 0.1, 0.3, 0.7, 1.0])
def test_the_best_length_on_a_grid(acceptance: float, cost: float) -> None:
    def gain(k: int) -> float:  # the geometric sum, term by term
        return sum(acceptance**i for i in range(k + 1)) / (k * cost + 1)

    gains = [gain(k) for k in range(17)]
    k = best_length(acceptance, cost, 16)
    assert gains[k] == pytest.approx(max(gains), rel=1e-6)


def test_the_shorter_on_a_tie() -> None:
    assert best_length(0.0, 0.0, 8) == 0  # a draft that costs nothing and gives nothing


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 0.3), st.floats(0, 0.3))
@examples(100)
def test_better_or_cheaper_drafts_are_never_shorter(
    acceptance: float, cost: float, better: float, cheaper: float
) -> None:
    k = best_length(acceptance, cost, 16)
    assert best_length(min(1.0, acceptance + better), cost, 16) >= k
    assert best_length(acceptance, max(0.0, cost - cheaper), 16) >= k


def played(
    rule: AdaptiveLength,
    rounds: int,
    accepted: Callable[[int, int], int] = lambda k, number: k,
    draft_s: Callable[[int, int], float] = lambda k, number: 0.001 * k,
    verify_s: float = 0.010,
) -> list[int]:
    """The lengths of so many rounds. accepted, draft_s: of k tokens in the round of that number."""
    lengths: list[int] = []
    for number in range(rounds):
        lengths.append(k := rule.next())
        rule.observe(StepStats(k, accepted(k, number), draft_s(k, number), verify_s))
    return lengths


def test_it_settles_where_the_formula_says() -> None:
    """Rounds of a known acceptance rate, their tokens after the first rejection unseen."""
    rng, rule = np.random.default_rng(1), AdaptiveLength(8, memory=0.99)
    chosen = played(rule, 800, lambda k, _: int(np.cumprod(rng.random(k) < 0.7).sum()))
    assert abs(np.mean(chosen[200:]) - best_length(0.7, 0.1, 8)) < 0.6


def test_drafts_that_never_pay_are_tried_seldom() -> None:
    """A token costs 0.9 of a pass and is right one time in two."""
    right, cost = lambda k, n: int(k > 0 and n % 2 == 0), lambda k, _: 0.009 * k
    lengths = played(AdaptiveLength(4), 400, right, cost)
    assert 400 / 64 < sum(k > 0 for k in lengths) <= 400 / 16


def test_drafts_that_cannot_pay_are_timed_again_now_and_then() -> None:
    rule = AdaptiveLength(4)
    for _ in range(20):
        rule.observe(StepStats(1, 1, 0.012, 0.010))  # all accepted, at 1.2 passes a token
    drafted = played(rule, 2 * RETRY + 50, draft_s=lambda k, _: 0.012 * k)
    tried = [turn for turn, k in enumerate(drafted, 1) if k]
    again = range(MEASURED // 2 + 2)
    assert tried == [many * RETRY + i for many in (1, 2) for i in again]


def test_rounds_in_which_something_is_compiled_do_not_end_drafting() -> None:
    seen = set[int]()

    def seconds(k: int, number: int) -> float:
        slow = k not in seen or number == 7  # compiled or recorded; a stall
        seen.add(k)
        return 3.0 if slow else 0.001 * k

    lengths = played(AdaptiveLength(4), 12, draft_s=seconds)
    assert min(lengths) > 0 and lengths[-1] == 4


def test_drafts_that_became_cheap_are_found_out() -> None:
    cost = lambda k, number: (0.012 if number < 20 else 0.001) * k  # noqa: E731
    lengths = played(AdaptiveLength(4), RETRY + 40, draft_s=cost)
    assert lengths[20] == 0 and lengths[-1] == 4


def test_a_drafter_that_drafts_in_turn_costs_more_beside_others() -> None:
    running = 1
    shared = SharedCosts((1, 8), (1, 2), ((1.0, 1.1), (3.0, 5.0)), narrow=8)
    rule = AdaptiveLength(4, passes=UnderLoad((1.0, 1.1, 1.2), 1.0, shared, lambda: running))
    rule.in_turn = True
    lengths = dict[int, list[int]]()
    for running in (1, 8, 1):  # a token takes as long whatever is beside it
        lengths[running] = played(rule, 40, draft_s=lambda k, _: 0.4 * k, verify_s=1.0)
    assert lengths[1][0] > 0 and lengths[1][-1] == 4 and not any(lengths[8])


@pytest.mark.parametrize("right", [0.85, 0.2])
def test_dear_drafts_that_are_right_are_found_in_a_short_answer(right: float) -> None:
    """At the prior a draft does not pay just yet: cost 0.6, one right token in 0.6 expected."""
    rng, lengths, tried = np.random.default_rng(3), list[int](), 0
    for _ in range(40):
        rule = AdaptiveLength(4)
        rule._costs.extend([0.62] * MEASURED)
        assert rule.next() == 1
        rule.reset()
        luck = lambda k, _: int(np.cumprod(rng.random(k) < right).sum())  # noqa: E731
        drafted = played(rule, 40, luck, lambda k, _: 0.0062 * k)
        tried += sum(k > 0 for k in drafted)
        lengths += drafted[20:]
    assert (np.mean(lengths) > 0.8) if right > 0.5 else (tried < 40 * 40 / 5)


def test_it_drafts_again_once_drafts_are_accepted_again() -> None:
    rule = AdaptiveLength(4)
    rejected = played(rule, 50, lambda k, _: 0)
    assert rejected[0] > 1 and 0 in rejected and max(rejected[5:]) == 1
    played(rule, 60)
    assert rule.next() == 4


def test_reading_what_was_missed_is_no_part_of_a_tokens_price() -> None:
    """A draft after rounds without one takes two passes more; from some round on all are right."""
    last = [1]

    def seconds(k: int, number: int) -> float:
        missed_s = 0.020 if k and not last[-1] else 0.0
        last.append(k)
        return 0.004 * k + missed_s

    drafted = played(AdaptiveLength(4), 200, lambda k, n: k if n >= 60 else 0, seconds)
    assert 0 in drafted and drafted[-1] == 4


@pytest.mark.parametrize("rule", [AdaptiveLength(6), FixedLength(3, 0.5), ScheduledLength(4)])
def test_no_draft_teaches_nothing_and_a_new_query_begins_anew(rule: DraftLength) -> None:
    first = rule.next(), rule.min_confidence
    for _ in range(50):
        rule.observe(StepStats(0, 0, 0.0, 0.01))
    assert (rule.next(), rule.min_confidence) == first
    for _ in range(9):
        rule.observe(StepStats(3, 0, 0.0, 0.0))  # what a draft costs stays known
    rule.reset()
    assert (rule.next(), rule.min_confidence) == first


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20))))
@examples(200)
def test_the_schedule_is_that_of_transformers(first: int, rounds: list[tuple[int, int]]) -> None:
    theirs: Any = SimpleNamespace(
        num_assistant_tokens=first,
        assistant_generation_config=SimpleNamespace(
            num_assistant_tokens_schedule="heuristic_transient", assistant_confidence_threshold=0
        ),
    )
    rule = ScheduledLength(first)
    for drafted, accepted in rounds:
        accepted = min(drafted, accepted)
        scores = [[0.0] * (drafted + 1)]
        AssistedCandidateGenerator.update_candidate_strategy(theirs, None, scores, accepted)
        rule.observe(StepStats(drafted, accepted, 0.0, 0.01))
        assert rule.next() == min(theirs.num_assistant_tokens, 64)
    rule.observe(StepStats(0, 0, 0.0, 0.01))
    assert rule.next() == min(theirs.num_assistant_tokens, 64)
    rule.reset()
    assert rule.next() == first
