"""Readings of hand-made curves, figures of hand-made answers."""

from __future__ import annotations

from typing import Any

import pytest
from router_fakes import make_turn

from router.specbench.curves import latency_at, quality_within
from router.specbench.points import Point, first_answers, points_of, sweep_summary
from router.specbench.quality import JUDGED_BY, MEASURES, rouge_2, score, similarity
from router.specbench.records import Answer, Row
from router.specbench.summary import summarise
from router.specbench.sweep import Curve

RISING = [(0.4, 0.50), (0.6, 0.80), (1.2, 0.95)]  # latency, quality


@pytest.mark.parametrize(
    ("quality", "latency"),
    [
        (0.95, 1.2),  # on a point
        (0.80, 0.6),
        (0.65, 0.5),  # half way between two
        (0.90, 1.0),  # two thirds of the way
        (0.10, 0.4),  # every point is good enough
        (0.96, None),  # not reached
    ],
)
def test_latency_at_a_quality(quality: float, latency: float | None) -> None:
    found = latency_at(RISING, quality)
    assert found == (None if latency is None else pytest.approx(latency))


@pytest.mark.parametrize(
    ("latency", "place"),
    [(1.0, (1.0, 0.90)), (2.0, (1.2, 0.95)), (0.6, (0.6, 0.80)), (0.5, (0.5, 0.65)), (0.3, None)],
)
def test_quality_within_a_latency(latency: float, place: tuple[float, float] | None) -> None:
    found = quality_within(RISING, latency)
    assert found == (None if place is None else pytest.approx(place))


def test_curves_may_bend_back() -> None:
    back = [(1.3, 0.2), (0.9, 0.9), (1.1, 0.7), (0.7, 0.3)]
    assert latency_at(back, 0.5) == pytest.approx(0.9)  # the last leg comes there, faster
    assert latency_at(back, 0.3) == pytest.approx(0.7)
    assert quality_within(back, 0.8) == pytest.approx((0.8, 0.4))
    assert quality_within(back, 1.0) == pytest.approx((0.9, 0.9)), "not its crossings at 1.0"


def test_points_without_an_order_are_not_joined() -> None:
    assert latency_at(RISING, 0.65, joined=False) == 0.6
    assert quality_within(RISING, 1.0, joined=False) == (0.6, 0.80)
    assert latency_at([(0.5, 0.7)], 0.7) == 0.5
    assert latency_at([], 0.7) is None and quality_within([], 1.0) is None


def test_the_fastest_of_equals() -> None:
    assert quality_within([(0.9, 0.5), (0.4, 0.5), (0.7, 0.5)], 1.0) == (0.4, 0.5)


def test_rounding_does_not_hide_a_point() -> None:
    assert latency_at([(0.5, 0.1 + 0.2)], 0.3) == 0.5
    assert latency_at([(0.5, 0.3)], 0.1 + 0.2) == 0.5


# -- measures -------------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    assert rouge_2("the red cat", "the red dog") == pytest.approx(0.5)  # one bigram of two
    assert rouge_2("x y", "a b | x y") == 1.0, "the accepted answer that fits best"
    assert similarity("a b c d", "a x c d") == pytest.approx(0.75)
    assert similarity("", "") == 1.0 and similarity("a", "") == 0.0
    assert similarity("a | b", "a | b c") < 1.0, "an answer's own bars do not part it"
    assert score("exact_match", ["so 7", "so 8"], ["#### 7", "#### 7"]) == 0.5
    assert score("bleu", ["a b c d e"], ["a b c d e"]) == pytest.approx(1.0)
    assert {task: m for task, m in MEASURES.items() if m not in JUDGED_BY[task]} == {}


# -- points ---------------------------------------------------------------------------------------


def answer(text: str, wall_s: float, tokens: int = 11, **other: Any) -> Answer:
    fields = {
        "prompt_ids": [1], "ids": list(range(tokens)), "text": text, "rounds": 5, "drafted": 10,
        "accepted": 5, "accepted_per_position": [5], "target_calls": 6, "prefill_s": 0.1,
        "draft_s": 0.1, "verify_s": 0.1, "wall_s": wall_s, "retokenised": tokens,
    }  # fmt: skip
    return Answer((make_turn(**{**fields, **other}),))


def row(id: str, task: str, reference: str | None, **answers: Answer) -> Row:
    return Row(id, task, None, reference, list(answers), 0.0, answers)


ROWS = [
    row("1", "qa", "red cat", autoregressive=answer("red cat", 1.0), fast=answer("red dog", 0.4)),
    row("2", "qa", None, autoregressive=answer("so it is", 2.0), fast=answer("so it is", 1.1)),
    row("3", "math", "#### 7", autoregressive=answer("7", 1.0), fast=answer("7", 0.5)),
    row("4", "math", "#### 8", autoregressive=answer("9", 1.0), fast=Answer(error="broke")),
]


def points(rows: list[Row] = ROWS) -> dict[tuple[str, str], Point]:
    found = points_of(rows, first_answers(rows), samples=200)
    return {(point.arm, point.task): point for point in found}


def test_points_of_hand_made_answers() -> None:
    found = points()
    assert set(found) == {
        (arm, task) for arm in ("autoregressive", "fast") for task in ("overall", "qa", "math")
    }
    fast = found["fast", "overall"]
    assert fast.latency == pytest.approx(2.0 / 4.0), "the failed answer counts on neither side"
    low, high = fast.latency_ci95
    assert 0.4 <= low <= fast.latency <= high <= 0.56
    assert fast.quality == {"agreement": pytest.approx((0.5 + 1 + 1) / 3)}
    assert found["fast", "qa"].latency == pytest.approx(1.5 / 3.0)
    assert found["fast", "qa"].quality == {
        "agreement": pytest.approx(0.75), "rouge_l": pytest.approx(0.5), "rouge_2": 0.0,
    }  # fmt: skip
    assert found["fast", "math"].quality == {"agreement": 1.0, "exact_match": 1.0}
    target = found["autoregressive", "math"]
    assert (target.latency, target.quality["exact_match"]) == (1.0, 0.5)


def test_an_arm_that_always_fails_has_no_point() -> None:
    rows = [row("1", "qa", None, autoregressive=answer("x", 1.0), fast=Answer(error="broke"))]
    assert set(points(rows)) == {("autoregressive", "overall"), ("autoregressive", "qa")}


def test_latency_is_of_answers_not_of_tokens() -> None:
    """Half the tokens in half the time: twice as fast an answer, no faster a token."""
    short = answer("x", 0.5, tokens=5)
    rows = [row("1", "qa", None, autoregressive=answer("x", 1.0, tokens=10), fast=short)]
    assert points(rows)["fast", "qa"].latency == pytest.approx(0.5)
    cells = summarise(rows, greedy=True, samples=50)["arms"]["fast"]
    assert cells["qa"]["speedup_vs_ar"] == pytest.approx(1.0)


# -- readings in the summary ----------------------------------------------------------------------


def test_a_summary_reads_every_curve() -> None:
    loose, tight = answer("7", 0.5), answer("7", 1.5)
    rows = [
        row("1", "math", "#### 7", autoregressive=answer("is 7", 1.0), **{
            "a@1": answer("is 3", 0.5), "a@2": tight, "b@x": loose, "b@y": answer("9", 0.1)}),
    ]  # fmt: skip
    curves = [
        Curve("a", "length.k", (1, 2), ("a@1", "a@2")),
        Curve("b", "rule", ("x", "y"), ("b@x", "b@y")),
        Curve("gone", "k", (1,), ("gone@1",)),
    ]
    found = sweep_summary(curves, rows, {})
    (panel,) = [p for p in found["panels"] if (p["task"], p["measure"]) == ("math", "exact_match")]
    assert panel["main"] and panel["target_quality"] == 1.0
    a, b, gone = panel["readings"]
    assert a == {
        "curve": "a",
        "latency_at_target_quality": pytest.approx(1.5),
        "latency_within_one_point": pytest.approx(1.49),
        "best_quality": pytest.approx(0.5),
        "best_quality_latency": pytest.approx(1.0),
    }
    assert b["latency_at_target_quality"] == pytest.approx(0.5)
    assert (b["best_quality"], b["best_quality_latency"]) == (1.0, pytest.approx(0.5))
    assert [gone[name] for name in gone if name != "curve"] == [None] * 4
    assert [curve["ordered"] for curve in found["curves"]] == [True, False, False]
