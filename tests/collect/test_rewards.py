"""Rewards against numbers worked out by hand."""

import itertools
import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from collect.records import ArmInfo, Outcome
from collect.rewards import REWARDS, Context, compute, get
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts


def arm(name: str, parameters: float, kind: str = "neural") -> ArmInfo:
    return ArmInfo(name, kind, int(parameters), True, {})


COSTS = Costs(verify_s=(0.010, 0.012, 0.014, 0.016, 0.020), draft_s={"a": 0.001, "b": 0.004})
ARMS = {"ar": arm("ar", 2e9, "autoregressive"), "a": arm("a", 0.5e9), "b": arm("b", 1e9)}
CONTEXT = Context(ARMS, COSTS, alpha=0.8)
ROW = Outcome(
    query_id="q", arm="a", parameters=500_000_000, rouge_l=0.25,
    rounds=10, drafted=40, accepted=24, new_tokens=35,
)  # fmt: skip
AR = replace(ROW, arm="ar", parameters=2_000_000_000, rouge_l=0.5, rounds=34, drafted=0, accepted=0)


def test_paper_is_the_formula_not_the_prose() -> None:
    # c = 1 - e^(0.5 - 2) = 1 - 0.22313016 = 0.77686984; 0.8 * 0.25 + 0.2 * c
    assert compute("paper", ROW, CONTEXT) == pytest.approx(0.35537397)
    at = [compute("paper", ROW, replace(CONTEXT, alpha=a)) for a in (0.0, 1.0)]
    assert at == [pytest.approx(0.77686984), pytest.approx(0.25)]  # alpha = 1: similarity alone


@pytest.mark.parametrize("name", ["paper", "parameter-ratio", "latency-ratio"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_alpha_weighs_the_autoregressive_arm_as_every_other(name: str, alpha: float) -> None:
    # The largest and slowest arm: c = 0, so that alpha * 0.5 is left.
    assert compute(name, AR, replace(CONTEXT, alpha=alpha)) == pytest.approx(alpha * 0.5)


@pytest.mark.parametrize("name", ["paper", "parameter-ratio", "latency-ratio"])
def test_cost_alone_prefers_the_cheapest_arm(name: str) -> None:
    rows = [AR, replace(ROW, arm="b", parameters=10**9, rouge_l=0.9), replace(ROW, rouge_l=0.0)]
    values = [compute(name, row, replace(CONTEXT, alpha=0.0)) for row in rows]
    assert values == sorted(values) and values[0] == 0


def test_paper_with_huge_models_does_not_overflow() -> None:
    arms = {"ar": arm("ar", 2000e9, "autoregressive"), "a": arm("a", 0.5e9)}
    assert compute("paper", ROW, Context(arms, COSTS, alpha=0.0)) == pytest.approx(1.0)


def test_parameter_and_latency_ratios() -> None:
    # 0.8 * 0.25 + 0.2 * (1 - 0.5 / 2)
    assert compute("parameter-ratio", ROW, CONTEXT) == pytest.approx(0.35)
    # the slowest token is the target's, 10 ms: 0.8 * 0.25 + 0.2 * (1 - 1 / 10)
    assert compute("latency-ratio", ROW, CONTEXT) == pytest.approx(0.38)


def test_acceptance_and_saved_passes() -> None:
    assert compute("acceptance", ROW, CONTEXT) == pytest.approx(0.6)
    assert compute("acceptance", AR, CONTEXT) == 0
    assert compute("saved-passes", ROW, CONTEXT) == pytest.approx(1 - 10 / 34)
    assert compute("saved-passes", AR, CONTEXT) == 0
    one = replace(ROW, new_tokens=1, rounds=0, drafted=0, accepted=0)
    assert compute("saved-passes", one, CONTEXT) == 0


def test_modelled_speed_up() -> None:
    # 34 tokens at 10 ms over 10 rounds of width 5 (20 ms) and 40 drafts of 1 ms
    assert compute("modelled", ROW, CONTEXT) == pytest.approx(0.340 / 0.240)
    assert compute("modelled", AR, CONTEXT) == 1
    # 25 drafts: mean width 3.5 lies between 14 and 16 ms
    fewer = replace(ROW, drafted=25)
    assert compute("modelled", fewer, CONTEXT) == pytest.approx(0.340 / (0.150 + 0.025))
    # wider than was measured: 60 / 10 + 1 = width 7 carries on at 10 / 4 ms a token
    wider = replace(ROW, drafted=60)
    assert compute("modelled", wider, CONTEXT) == pytest.approx(0.340 / (0.250 + 0.060))
    one = replace(ROW, new_tokens=1, rounds=0, drafted=0, accepted=0)
    assert compute("modelled", one, CONTEXT) == 1


def test_passes_are_priced_width_by_width() -> None:
    # nine passes over one token (10 ms) and one over 41, at 20 ms and 2.5 ms for each beyond 5
    wide = replace(ROW, widths=(9.0, *[0.0] * 39, 1.0))
    assert compute("modelled", wide, CONTEXT) == pytest.approx(0.340 / (0.090 + 0.110 + 0.040))
    even = replace(ROW, widths=(0.0, 0.0, 0.0, 0.0, 10.0))
    assert compute("modelled", even, CONTEXT) == compute("modelled", ROW, CONTEXT)


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_passes_that_are_shared_are_priced_by_the_mean_of_their_widths(answers: int) -> None:
    """Against every way in which the answers' widths can fall together."""
    counts = (3.0, 0.0, 1.5, 0.0, 0.5)
    rounds = sum(counts)
    expected = 0.0
    for widths in itertools.product(range(1, 6), repeat=answers):
        chance = math.prod(counts[width - 1] / rounds for width in widths)
        expected += rounds * chance * COSTS.verify(sum(widths) / answers)
    assert COSTS.passes_s(counts, answers) == pytest.approx(expected, rel=1e-9)
    row = replace(ROW, rounds=rounds, drafted=0, running=answers - 1, widths=counts)
    assert compute("modelled", row, CONTEXT) == pytest.approx(0.340 / expected)


@pytest.mark.parametrize("width", [1, 3, 5, 7, 33])
def test_a_pass_costs_what_draft_lengths_are_chosen_by(width: int) -> None:
    row = replace(ROW, rounds=10, drafted=10 * (width - 1), new_tokens=35)
    free = replace(CONTEXT, costs=replace(COSTS, draft_s={}))
    spent = 34 * COSTS.verify_s[0] / compute("modelled", row, free) / 10
    assert spent == pytest.approx(PassCosts(COSTS.verify_s)(width))


def test_arms_that_ask_the_target_seldom_or_not_at_all() -> None:
    # a kept sequence of 35 tokens: 34 at 10 ms, for 35 drafts of 1 ms and no pass of the target
    kept = replace(ROW, rounds=0, drafted=35, accepted=35)
    assert compute("modelled", kept, CONTEXT) == pytest.approx(0.340 / 0.035)
    assert compute("saved-passes", kept, CONTEXT) == 1
    # without a drafter every token is a pass of the target, and as slow as the slowest
    arms = {**ARMS, "none": arm("none", 2e9, "calm")}
    alone = replace(AR, arm="none")
    context = Context(arms, COSTS, alpha=0.8)
    assert compute("modelled", alone, context) == pytest.approx(1)
    assert compute("latency-ratio", alone, context) == pytest.approx(0.8 * 0.5)


def test_what_rounds_take_beside_their_passes() -> None:
    beside = {"autoregressive": 0.001, "a": 0.005}, {"autoregressive": 0.002, "a": 0.007}
    costs = replace(COSTS, round_s=beside[0], drawn_round_s=beside[1])
    context = replace(CONTEXT, costs=costs)
    assert compute("modelled", ROW, context) == pytest.approx(0.374 / (0.240 + 0.050))
    drawn = replace(ROW, temperature=0.7)
    assert compute("modelled", drawn, context) == pytest.approx(0.408 / (0.240 + 0.070))
    other = replace(ROW, arm="b")  # never measured: as plain decoding's
    assert compute("modelled", other, context) == pytest.approx(0.374 / (0.200 + 0.160 + 0.010))
    assert compute("modelled", AR, context) == 1
    again = Costs.from_json(json.loads(json.dumps(asdict(replace(costs, at_once={8: costs})))))
    assert again.of_answers(8) == costs and again.of(["b"]).round_s == {"autoregressive": 0.001}


def test_copied_tokens_are_no_steps_of_a_drafter() -> None:
    copied = replace(ROW, calls=10.0)
    assert compute("modelled", copied, CONTEXT) == pytest.approx(0.340 / (0.200 + 0.010))
    assert compute("latency-ratio", copied, CONTEXT) == compute("latency-ratio", ROW, CONTEXT)


def test_time_saved_is_of_plain_decoding() -> None:
    speed = compute("modelled", ROW, CONTEXT)
    assert compute("time-saved", ROW, CONTEXT) == pytest.approx(1 - 1 / speed)
    assert compute("time-saved", AR, CONTEXT) == 0


def test_measured() -> None:
    times: dict[str, Any] = {"measured_tokens": 30, "measured_prefill_s": 0.5}
    row = replace(ROW, **times, measured_decode_s=0.5)
    plain = replace(AR, **times, measured_decode_s=1.0)
    context = replace(CONTEXT, autoregressive=plain)
    assert compute("measured", row, context) == pytest.approx(30)
    assert compute("measured-speedup", row, context) == pytest.approx(1.5)
    assert compute("measured-speedup", plain, context) == pytest.approx(1)
    assert math.isnan(compute("measured", ROW, CONTEXT))
    assert math.isnan(compute("measured-speedup", row, CONTEXT))


@pytest.mark.parametrize("name", REWARDS)
def test_an_error_row_has_no_reward(name: str) -> None:
    row = Outcome(query_id="q", arm="a", parameters=1, error="boom")
    assert math.isnan(compute(name, row, CONTEXT))


def test_unknown_reward_and_bad_alpha() -> None:
    with pytest.raises(DraftpickError, match=r"unknown reward 'bleu'; known: .*paper"):
        get("bleu")
    with pytest.raises(DraftpickError, match="alpha must be between 0"):
        compute("paper", ROW, replace(CONTEXT, alpha=1.5))


def test_labels_say_what_matters() -> None:
    assert get("paper").label(0.5) == "paper@2 alpha=0.5"
    assert get("modelled").label(0.5) == "modelled@5"
