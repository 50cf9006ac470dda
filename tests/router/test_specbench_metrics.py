"""Golden numbers, worked out by hand beside each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from router_fakes import RESULT, make_turn

from collect.sweeps.repetition import is_repetitive
from router.specbench.bench import accept_lengths
from router.specbench.corpus_bleu import ngram_counts
from router.specbench.metrics import Pair, bootstrap, cell, official_speedup, speedup
from router.specbench.quality import bleu, exact_match, final_number, quality, rouge_2, rouge_l
from router.specbench.records import Answer, Row, Turn
from router.specbench.summary import summarise


def turn(tokens: int, wall_s: float, rounds: int, **other: Any) -> Turn:
    fields = {
        "ids": list(range(tokens)), "wall_s": wall_s, "rounds": rounds, "verify_s": wall_s / 2,
        "prefill_s": wall_s / 2, "target_calls": rounds + 1, "retokenised": tokens - 2,
    }  # fmt: skip
    return make_turn(**{**fields, **other})


def answer(tokens: int, wall_s: float, rounds: int, **other: Any) -> Answer:
    return Answer((turn(tokens, wall_s, rounds, **other),))


PAIRS = [
    Pair("qa", "1", None, answer(11, 1.0, 5, drafted=10, accepted=5), answer(11, 2.0, 10)),
    Pair("qa", "2", None, answer(21, 3.0, 5, drafted=20, accepted=15), answer(21, 4.0, 20)),
]


def test_the_cell_of_two_questions() -> None:
    found = cell(PAIRS)
    assert found.tokens == 32
    assert found.tokens_per_s == pytest.approx(32 / 4)
    assert found.speedup_vs_ar == pytest.approx((32 / 4) / (32 / 6))
    # decode only: 10 + 20 tokens in 0.5 + 1.5 s, against the same tokens in 1 + 2 s
    assert found.decode_tokens_per_s == pytest.approx(30 / 2)
    assert found.decode_speedup_vs_ar == pytest.approx((30 / 2) / (30 / 3))
    assert found.mean_accepted == pytest.approx(30 / 10)
    assert found.acceptance_rate == pytest.approx(20 / 30)
    assert found.target_calls_per_token == pytest.approx(12 / 32)
    assert (found.prefill_share, found.verify_share) == (0.5, 0.5)
    assert (found.draft_share, found.other_share, found.policy_share) == (0, 0, 0)
    # the official formula: mean of tokens/s per question, the baseline's tokens as retokenised
    assert found.speedup_official == pytest.approx(
        np.mean([11 / 1, 21 / 3]) / np.mean([9 / 2, 19 / 4])
    )
    assert (found.differs_from_ar, found.compared) == (0, 2)
    assert found.quality is None


def test_three_averages_of_one_speed_up() -> None:
    """A long answer that gains little, and short ones that gain much, in tasks of other sizes."""
    long_ = Pair("rag", "3", None, answer(100, 10.0, 5), answer(100, 11.0, 10))  # 1.1
    short = [
        Pair("qa", "4", None, answer(10, 1.0, 5), answer(10, 2.0, 10)),  # 2
        Pair("qa", "5", None, answer(10, 1.0, 5), answer(10, 4.0, 10)),  # 4
    ]
    found = cell([long_, *short])
    assert found.speedup_vs_ar == pytest.approx((120 / 12) / (120 / 17))
    assert found.speedup_mean_over_tasks == pytest.approx((1.1 + 6 / 2) / 2)
    assert found.speedup_mean_over_questions == pytest.approx((1.1 + 2 + 4) / 3)
    one_task = cell(short)
    assert one_task.speedup_mean_over_tasks == one_task.speedup_vs_ar == pytest.approx(3)
    assert one_task.speedup_mean_over_questions == pytest.approx(3)
    still = Pair("math", "6", None, answer(0, 0.0, 0), answer(0, 0.0, 0))  # no ratio of its own
    again = cell([long_, *short, still])
    assert again.speedup_mean_over_tasks == found.speedup_mean_over_tasks
    assert again.speedup_mean_over_questions == found.speedup_mean_over_questions


def test_failed_answers_are_left_out_on_both_sides() -> None:
    failed = Answer(error="no")
    pairs = [*PAIRS, Pair("qa", "7", None, failed, PAIRS[0].baseline)]
    assert cell(pairs) == cell(PAIRS)
    assert cell([Pair("qa", "8", None, PAIRS[0].method, failed)]) is None
    assert official_speedup([], []) is None


def test_bootstrap_agrees_with_the_plain_loop() -> None:
    table = np.array([[10, 1.0, 10, 2.0], [20, 3.0, 20, 4.0], [30, 2.0, 30, 5.0]])
    rng = np.random.default_rng(1)
    ratios = [speedup(table[rng.integers(0, 3, 3)]) for _ in range(4000)]
    slow = np.percentile(np.array(ratios, dtype=float), [2.5, 97.5])
    assert bootstrap(table, apart(table)) == pytest.approx(tuple(slow), abs=0.02)
    assert bootstrap(table[:1], ["a"]) is None, "one question shows no spread"
    assert bootstrap(table[:0], []) is None and speedup(table[:0]) is None


def test_questions_of_one_source_are_drawn_together() -> None:
    """Twelve questions of three sources know no more than three."""
    three = np.array([[10, 1.0, 10, 2.0], [10, 1.0, 10, 3.0], [10, 1.0, 10, 1.0]])
    four, names = three.repeat(4, 0), np.repeat(["a", "b", "c"], 4).tolist()
    assert bootstrap(four, names) == bootstrap(three, ["a", "b", "c"])
    assert bootstrap(three[:1].repeat(4, 0), ["a"] * 4) is None, "one source shows no spread"

    def rows(group: str | None) -> list[Row]:
        made = []
        for number, (tokens, seconds, _, base) in enumerate(four.tolist()):
            answers = {"autoregressive": answer(int(tokens), base, 10)}
            answers["a"] = answers["routed"] = answer(int(tokens), seconds, 5)
            own = None if group is None else f"{group} {number // 4}"
            made.append(Row(f"q{number}", "qa", None, None, list(answers), 0.0, answers, own))
        return made

    def width(found: dict[str, Any]) -> float:
        low, high = found["arms"]["a"]["overall"]["ci95"]
        return float(high - low)

    found = summarise(rows("passage"), greedy=True)
    assert width(found) > 1.5 * width(summarise(rows(None), greedy=True))
    assert Row.from_json(rows("passage")[0].to_json()).source == "group passage 0"


def apart(table: np.ndarray) -> list[str]:
    return [str(number) for number in range(len(table))]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5] * 16, True),
        ([5] * 15, False),
        ([1, 2, 3, 4, *[7, 8, 9] * 6], True),
        ([1, 2, 3, 4, *[7, 8, 9] * 6, 7], True),  # the last repeat cut short
        ([1, 2, 3, 4, *[7, 8, 9] * 6, 2], True),  # ended by the end-of-sequence token
        ([*[7, 8, 9] * 6, 1, 5, 4], False),  # it got out of the loop
        ([*range(100, 130)] * 2, False),  # said twice is not yet a loop
        ([*range(100, 130)] * 3, True),
        ([], False),
        ([2], False),
    ],
)
def test_repetition(ids: list[int], expected: bool) -> None:
    assert is_repetitive(ids, eos_ids=(2,)) is expected


def test_speedups_with_and_without_repetition() -> None:
    repetitive = Pair("qa", "9", None, Answer((turn(0, 1.0, 4, ids=[5] * 40),)),
                   Answer((turn(0, 8.0, 39, ids=[5] * 40),)))  # fmt: skip
    found = cell([*PAIRS, repetitive])
    assert found.repetitive_share == pytest.approx(1 / 3)
    assert found.speedup_without_repetition == pytest.approx((32 / 4) / (32 / 6))
    assert found.speedup_vs_ar == pytest.approx((72 / 5) / (72 / 14))
    assert found.questions_without_repetition == 2


def test_only_answers_to_the_same_prompt_are_compared() -> None:
    other, elsewhere = (turn(3, 1.0, 2, ids=[9, 9, 8], prompt_ids=p) for p in ([7], [1, 2]))
    method = Answer((other, elsewhere))
    baseline = Answer((turn(3, 1.0, 2), turn(3, 1.0, 2)))
    found = cell([Pair("qa", "10", None, method, baseline)])
    assert found is not None and (found.differs_from_ar, found.compared) == (1, 1)


def test_accept_lengths_add_up() -> None:
    # three rounds: 2, 1 and 0 drafted tokens accepted, each with the target's own behind
    whole = replace(RESULT, ids=list(range(7)), rounds=3, accepted=3, accepted_per_position=[2, 1])
    assert accept_lengths(whole) == [3, 2, 1]
    # the same, but the answer ended inside a draft: no token of the target's own in that round
    ended = replace(whole, ids=list(range(6)))
    assert sum(accept_lengths(ended)) == 5
    assert accept_lengths(replace(RESULT, ids=[1], rounds=0)) == []


def test_quality_measures() -> None:
    assert rouge_l("the cat sat", "the cat sat | a dog") == 1.0
    assert rouge_l("the cat ran", "the cat sat") == pytest.approx(2 / 3)
    assert rouge_l("anything", "") == 0.0
    assert rouge_2("x y", "a b | x y") == 1.0, "the accepted answer that fits best"
    assert quality("mt_bench", ["x"], ["y"]) is None
    assert quality("qa", [], []) is None
    assert quality("cooking", ["the cat ran"], ["the cat sat"]) == pytest.approx(2 / 3)
    assert quality("math", ["so it is 12.", "#### 4"], ["#### 12", "#### 5"]) == 0.5


@pytest.mark.parametrize(
    ("texts", "references", "found"),
    [
        (["a cat sat on the mat"], ["a cat sat on the mat"], 1.0),
        (["quite other words here now"], ["a cat sat on the mat"], 0.0),
        (["cat"], ["cat"], 0.0),
        ([""], ["the cat"], 0.0),
        (
            ["Der Hund läuft im Park.", "Es kostet 3,50 Euro."],
            ["Der Hund rennt durch den Park.", "Es kostet 3.50 Euro."],
            0.168309206135600,
        ),
        (
            ["a U.S. plan of 5-6 &quot;new&quot; roads"],
            ['the U.S. plan of 5-6 "new" roads, in all'],
            0.742001678683213,
        ),
        (
            ["the cat sat on the mat", "quite another line here", "on the mat"],
            ["the cat sat on a mat", "no such words at all", "on the mat, I think"],
            0.313249866258400,
        ),
    ],
)
def test_bleu_is_sacrebleus(texts: list[str], references: list[str], found: float) -> None:
    """As sacrebleu 2.6.0 has `corpus_bleu(texts, [references]).score / 100`."""
    assert bleu(texts, references) == pytest.approx(found, abs=1e-12)


def test_any_of_several_accepted_answers_counts() -> None:
    assert exact_match("The answer is 3.", "3 | 4") == exact_match("#### 4", "3 | 4") == 1.0
    assert exact_match("5", "3 | 4") == 0.0
    first, second = "the cat sat on the mat today", "a cat was sitting there"
    assert bleu([first, second], [f"{first} | {second}"] * 2) == 1.0
    # n-grams of any answer, and the length of the nearest, of two as near the shorter
    mixed = ngram_counts("the cat sat there", [first, second])
    assert mixed[:4] == [4, 2, 1, 0] and mixed[-2:] == [4, 5]
    assert ngram_counts("a b c d", ["a b c d e", "a b c"])[-1] == 3


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42.", "42"),
        ("#### 1,176", "1176"),
        ("it costs $3.50", "3.5"),
        ("12.0 dollars", "12"),
        ("5 #### 7 or 8", "7"),
        ("minus -3", "-3"),
        ("none", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == number


def test_no_number_never_matches() -> None:
    assert exact_match("none", "also none") == 0.0


def test_summary_of_oracle_and_best_fixed() -> None:
    def row(identity: str, ar_s: float, a_s: float, b_s: float) -> Row:
        answers = {
            "autoregressive": answer(11, ar_s, 10),
            "a": answer(11, a_s, 5),
            "b": answer(11, b_s, 5),
            "routed": answer(11, a_s, 5, embed_s=0.001, policy_s=0.004),
        }
        return Row(identity, "qa", None, None, list(answers), 0.0, answers)

    found = summarise([row("1", 4, 1, 2), row("2", 4, 3, 2)], greedy=True)
    assert found["best_fixed"]["arm"] in ("a", "b")
    assert found["best_fixed"]["overall"]["speedup_vs_ar"] == pytest.approx(2.0)
    assert found["oracle"]["overall"]["speedup_vs_ar"] == pytest.approx(8 / 3)
    assert found["oracle"]["choices"] == {"qa": {"a": 1, "b": 1}}
    assert found["best_fixed"]["overall"]["speedup_mean_over_questions"] > 2.0
    assert found["routed_vs_best_fixed"]["ratio"] == pytest.approx(1.0)
    means = {"mean_over_tasks", "mean_over_questions"}
    assert means < found["routed_vs_best_fixed"].keys()
    assert found["policy_overhead_s"] == pytest.approx(0.005)
    assert found["policy_overhead_share"] == pytest.approx(0.01 / 2.0)
