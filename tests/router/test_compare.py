"""`draftpick compare`: what fell is found, and what did not is not accused."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collect_fakes import FakeEngine, make_queries, sweep
from commands import Draftpick
from effort import FULL
from log_lines import DecisionLog, decision

from collect.store.tables import OUTCOMES_SCHEMA, read_table
from collect.sweeps.batch import SweepOptions
from decoders.common.errors import DraftpickError
from router.logs.record import Result, Text
from router.specbench.compare import FEWEST, Measured, compared, read_measured
from router.specbench.compare_logs import read_sides


def answers(
    seed: int, sources: int, slower: float = 1.0, each: int = 3, name: str = "q"
) -> list[Measured]:
    """Answers of sources of very different speeds; the timings' noise depends on the seed."""
    hard, noise = np.random.default_rng(1), np.random.default_rng(seed)
    made = []
    for source in range(sources):
        level, right = np.exp(hard.normal(0, 0.5)), hard.uniform(0.3, 0.9)
        for number in range(each):
            seconds = slower * level * np.exp(noise.normal(0, 0.15))
            accepted = float(noise.binomial(40, right))
            sums = 64.0, float(seconds), 40.0, accepted, 64.0, 64.0 - accepted
            made.append(Measured("hybrid", (source, number), f"{name}{source}", sums))
    return made


def fell(before: list[Measured], after: list[Measured], seed: int = 0) -> list[str]:
    return [each.figure for each in compared(before, after, seed) if each.fell]


def test_a_fall_is_found_by_pairs_alone_where_questions_differ_much() -> None:
    before, after = answers(2, 30), answers(3, 30, slower=1.1)
    assert fell(before, after) == ["tokens/s"] and fell(after, before) == []
    (speed, *_) = compared(before, after)
    assert speed.paired and speed.low < 1 / 1.1 < speed.high < 1
    others = [Measured(m.arm, ("other", m.key), m.source, m.sums) for m in after]
    assert fell(before, others) == [] and not compared(before, others)[0].paired


def test_of_pairs_only_those_count_that_both_sides_know() -> None:
    """Of seven sources, different ones, no tokens are known on either side."""

    def without(made: list[Measured], unknown: range) -> list[Measured]:
        lost = {f"q{number}" for number in unknown}
        return [
            replace(each, sums=(float("nan"), *each.sums[1:])) if each.source in lost else each
            for each in made
        ]

    made = answers(2, 30)
    speed, *others = compared(without(made, range(7)), without(made, range(7, 14)))
    assert (speed.figure, speed.sources, speed.ratio) == ("tokens/s", 30 - 14, 1.0)
    assert {each.sources for each in others} == {30}


@pytest.mark.property  # of random timings: more of them in `make slow`
@pytest.mark.parametrize(("sources", "paired"), [(12, True), (40, True), (15, False)])
def test_what_did_not_fall_is_seldom_accused(sources: int, paired: bool) -> None:
    """In a twentieth of comparisons at most, with room for chance."""
    alarms, many = 0, 60 if FULL else 24
    for trial in range(many):
        before, after = (answers(10 + 2 * trial + n, sources) for n in (0, 1))
        if not paired:
            chance = np.random.default_rng(trial)
            pool = answers(5000 + trial, 4 * sources)
            chosen = chance.permutation(4 * sources)[: 2 * sources]
            halves = [{f"q{n}" for n in part} for part in np.split(chosen, 2)]
            before, after = ([m for m in pool if m.source in half] for half in halves)
        alarms += bool(fell(before, after, trial))
    assert alarms <= 0.05 * many + 2 * (0.05 * 0.95 * many) ** 0.5, alarms


def drafting(arm: str, drafted: float, accepted: float) -> list[Measured]:
    """Of 20 questions, each with about so many tokens drafted and accepted in ten passes."""
    noise = np.random.default_rng(0).uniform(0.99, 1.01, (20, 1))
    sums = (noise * [drafted, accepted]).tolist()
    nan = float("nan")
    return [
        Measured(arm, number, f"q{number}", (nan, nan, made, right, 10 + right, 10.0))
        for number, (made, right) in enumerate(sums)
    ]


@pytest.mark.parametrize(
    ("after", "accused"),
    [
        ((40, 16), []),  # longer drafts, as many tokens a pass
        ((40, 14), ["tokens a pass"]),
        ((30, 14), ["acceptance", "tokens a pass"]),
        ((20, 8), ["acceptance", "tokens a pass"]),  # shorter since they are worse
        ((20, 14), []),  # shorter, and more of them right
    ],
)
def test_a_draft_length_that_was_chosen_is_no_fall(
    after: tuple[float, float], accused: list[str]
) -> None:
    """Of 30 drafted tokens 16 were accepted before."""
    assert fell(drafting("recurrent", 30, 16), drafting("recurrent", *after)) == accused


@pytest.mark.parametrize(("accepting", "accused"), [(20, True), (4, False)])
def test_nothing_accepted_any_more_is_a_fall(accepting: int, accused: bool) -> None:
    """Unless few sources had any before."""
    nan = float("nan")
    before, after = (
        [
            replace(each, sums=(nan, nan, 40.0, 16.0 * (n < some), nan, 10.0))
            for n, each in enumerate(drafting("cell", 40, 0))
        ]
        for some in (accepting, 0)
    )
    (acceptance,) = (each for each in compared(before, after) if each.figure == "acceptance")
    assert acceptance.fell is accused and (acceptance.high == 0) is accused


def test_answers_of_a_collection_whose_tokens_are_unknown_have_no_speed(tmp_path: Path) -> None:
    """They are no answers of 0 tokens, though they took time."""
    options = SweepOptions(max_new_tokens=8, measure=True)
    sweep(FakeEngine(), make_queries(1), tmp_path / "rows", options)
    made = read_table(tmp_path / "rows", "outcomes").to_pylist()
    none = [row | {"measured_tokens": None} for row in made]
    (path,) = (tmp_path / "rows" / "outcomes").iterdir()
    pq.write_table(pa.Table.from_pylist(none, schema=OUTCOMES_SCHEMA), path)
    found = read_measured(tmp_path / "rows")
    assert found and all(np.isnan(each.sums[0]) and each.sums[1] > 0 for each in found)


def test_few_sources_say_nothing() -> None:
    some = compared(answers(1, FEWEST - 1), answers(2, FEWEST - 1, slower=3))
    assert not any(each.fell for each in some) and all(np.isnan(each.low) for each in some)
    with pytest.raises(DraftpickError, match="no arm in common"):
        compared(answers(1, 20), [])


def report(path: Path, step_s: float, many: int = 20) -> Path:
    steps = [
        {"at_once": 1, "tokens": 100, "wall_s": step_s * 50 * (1 + at % 3 / 50), "drafted": 80,
         "accepted": 50 - at % 3, "rounds": 50}
        for at in range(many)
    ]  # fmt: skip
    path.write_text(json.dumps({"engine": "vllm", "steps": steps}))
    return path


def test_checks_are_compared_and_the_exit_code_says_so(
    tmp_path: Path, draftpick: Draftpick
) -> None:
    one, two = report(tmp_path / "one.json", 0.01), report(tmp_path / "two.json", 0.012)
    shown = draftpick("compare", one, two, code=1).out
    assert "Fell: tokens/s of 1 at once, to 0.833 times" in shown and "acceptance of" not in shown
    assert "Nothing fell beyond doubt." in draftpick("compare", two, one).out
    assert draftpick("compare", one, one, "--json").json["fell"] is False


SAID = {"sql": "Write a query that counts orders", "json": "Give the parsed invoice fields"}


def log(folder: Path, speeds: dict[str, dict[str, float]], each: int = 40) -> Path:
    """Answers by one policy after the other, named as in speeds, of every kind of work at its
    tokens a second."""
    log, noise = DecisionLog(folder, text=True), np.random.default_rng(0)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for policy, by_kind in speeds.items():
        for number in range(each):
            for kind, speed in by_kind.items():
                start += timedelta(seconds=1)
                made = Result(
                    new_tokens=41,
                    rounds=20,
                    drafted=40,
                    accepted=20,
                    prefill_s=0.1,
                    decode_s=40 / speed * noise.uniform(0.9, 1.1),
                    wall_s=1.0,
                )
                text = Text(prompt=f"{SAID[kind]} of customer {number}", answer="x")
                log.add(
                    decision(
                        f"{policy}-{kind}-{number}/0",
                        policy=policy,
                        time=start,
                        outcome=made,
                        text=text,
                    )
                )
        start += timedelta(hours=1)
        log.add(
            decision(
                f"named-{policy}",
                policy=None,
                choice="forced",
                propensity=1.0,
                probabilities={},
                arms_fingerprint="other",
                time=start,
            )
        )
    return folder  # fmt: skip


def test_a_log_is_compared_before_and_since_a_promotion_by_kinds_of_work(
    tmp_path: Path, draftpick: Draftpick
) -> None:
    """A fall of one kind that a gain of another hides in the whole; arms that clients named do not
    count."""
    path = log(tmp_path / "log", {"old": {"sql": 20, "json": 20}, "new": {"sql": 40, "json": 16}})
    changes = draftpick("compare", path, "--json", "--show-words", code=1).json["changes"]
    found = {each["arm"]: each for each in changes if each["figure"] == "tokens/s"}
    (sql,), (other,) = ([name for name in found if word in name] for word in ("orders", "invoice"))
    assert found.keys() == {"all traffic", sql, other}
    assert found["all traffic"]["low"] > 1 < 1.9 < found[sql]["ratio"] < 2.1
    assert 0.78 < found[other]["ratio"] < 0.82 and found[other]["fell"]
    assert found[sql]["sources"] == 40
    shown = draftpick("compare", path, path).out
    assert "group 2" in shown and "invoice" not in shown


def test_two_policies_at_once_have_no_before_and_since(
    tmp_path: Path, draftpick: Draftpick
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def written(name: str, policies: str) -> Path:
        folder = tmp_path / name
        for second, policy in enumerate(policies):
            time = start + timedelta(seconds=second)
            DecisionLog(folder).add(decision(f"{second}", policy=policy, time=time))
        return folder

    for mixed in ("ab" * 30, "a" * 20 + "b" * 20 + "a" * 20 + "b" * 20):
        told = draftpick("compare", written(f"{mixed.count('ab')}", mixed), code=2).err
        assert "write one log by each and name both" in told
    in_turn = {"over": "a" * 20 + "ba" * 2 + "b" * 40, "back": "b" * 20 + "a" * 20 + "b"}
    for name, serial in in_turn.items():
        before, after = read_sides(written(name, serial), None)
        assert {each.policy for each in after} == {"b"} and len(after) == len(serial) - len(before)


def test_a_log_of_one_policy_wants_another(tmp_path: Path, draftpick: Draftpick) -> None:
    path = log(tmp_path / "log", {"old": {"sql": 20}})
    told = draftpick("compare", path, code=2).err
    assert "by one set of arms and one policy; name what" in told


def test_a_collection_is_no_log(tmp_path: Path, draftpick: Draftpick) -> None:
    logged, report_ = log(tmp_path / "log", {"old": {"sql": 20}}), report(tmp_path / "a.json", 0.01)
    for sides in ((logged, report_), (report_, logged)):
        assert "name two of these, or two logs" in draftpick("compare", *sides, code=2).err
    assert f"name what {report_} is to be" in draftpick("compare", report_, code=2).err
    (file,) = logged.glob("*.jsonl")
    assert "Nothing fell" in draftpick("compare", file, file).out


@pytest.mark.parametrize("content", [None, "{}", "no"])
def test_what_is_none_of_these_is_one_sentence(
    content: str | None, tmp_path: Path, draftpick: Draftpick
) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert "report of `draftpick" in draftpick("compare", path, path, code=2).err
