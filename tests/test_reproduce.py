"""`make reproduce`: what is declared fits together, and a family is reproduced end to end."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import DraftpickError
from decoders.records import DecodeResult
from policies import load
from router.specbench.protocol import check_measures
from router.specbench.records import Answer, Row, Turn
from router.specbench.summary import summarise

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.reproduce import queries
from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.captions import captions
from benchmarks.reproduce.draws import margin, spread, together, walls_of
from benchmarks.reproduce.page import as_json, render, verdict
from benchmarks.reproduce.records import MEAN, Claim, Curve, Measured, Reproduction
from benchmarks.reproduce.registry import REPRODUCTIONS, reproduction
from benchmarks.reproduce.rules import at_quality, in_time
from benchmarks.reproduce.run import Scale, engine_options, keep_scale, require_weights, write
from benchmarks.reproduce.t5 import FAMILY

ALL = [make() for make in REPRODUCTIONS.values()]


def named(what: Reproduction) -> str:
    return what.name


# -- what is declared -----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ALL, ids=named)
def test_what_a_page_shows_is_measured(what: Reproduction) -> None:
    """Every cell's run, method and task exist, and every figure of the paper has its place."""
    runs = {run.name: run for run in what.runs}
    plans = {plan.name for plan in what.policies}
    tasks = {query.task for query in what.draw_test(2)}
    assert len(runs) == len(what.runs) and len(plans) == len(what.policies)
    for table in what.tables:
        labels = {line.label for line in table.lines}
        assert set(table.paper) <= labels and len(labels) == len(table.lines)
        assert all(len(theirs) == len(table.columns) for theirs in table.paper.values())
        for column in table.columns:
            run = runs[column.run]
            assert column.task in {*(run.tasks or tasks), MEAN}
            drawn = {f"{name} (dynamic)" for name in run.policies if run.dynamic}
            known = {AUTOREGRESSIVE, *run.arms, *run.policies, *drawn}
            assert {line.method for line in table.lines} <= known
    assert plans == {name for run in what.runs for name in run.policies} | {
        name for curve in what.curves for name in curve.points.values()
    }, "a policy is trained that nothing shows"
    for plan in what.policies:
        assert set(plan.arms) <= {*what.arms}
    assert what.claims and what.differs and what.title and what.minutes > 0


@pytest.mark.parametrize("what", ALL, ids=named)
def test_its_arms_can_be_declared(what: Reproduction) -> None:
    for arms in (what.arms, *(run.arms for run in what.runs)):
        assert set(engine_options(what, arms).recipes()) == {AUTOREGRESSIVE, *arms}


def test_the_papers_results_are_all_there() -> None:
    assert set(REPRODUCTIONS) == {
        *(f"table-{number}" for number in range(1, 7)),
        "figure-2", "figure-3", "tables-11-12", "tables-13-14", "speccascade", "bild",
    }  # fmt: skip
    with pytest.raises(
        DraftpickError, match="unknown reproduction 'table-7'; known: bild, figure-2"
    ):
        reproduction("table-7")


# -- queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [queries.translations, queries.articles, queries.word_problems])
def test_nothing_is_trained_on_and_asked(draw: Any) -> None:
    train, test = draw("train", 500), draw("test", 500)
    for found in (train, test):
        assert len({q.id for q in found}) == len({q.turns for q in found}) == len(found) > 10
        check_measures(found[0].task)
    assert not {q.turns for q in train} & {q.turns for q in test}
    assert draw("test", 5) == test[:5]


def test_test_captions_say_what_no_training_caption_says() -> None:
    train = {words for q in captions("train", 10_000) for words in q.turns[0].split()}
    test = {words for q in captions("test", 10_000) for words in q.turns[0].split()}
    assert {"painting", "feeding", "carrying"} <= test - train
    assert all(q.reference and q.reference.endswith(".") for q in captions("test", 20))


def test_articles_with_references_come_first() -> None:
    found = queries.articles("test", 500)
    has = [query.reference is not None for query in found]
    assert has == sorted(has, reverse=True) and any(has) and not all(has)
    assert not any("ummarize: S" in query.turns[0][10:] for query in found)


# -- mistakes -------------------------------------------------------------------------------------


def test_without_the_weights(tmp_path: Path) -> None:
    what = reproduction("table-1")
    gone = replace(what.models, target=str(tmp_path / "target"), family=tmp_path)
    with pytest.raises(DraftpickError, match=r"train_t5_family\.py"):
        require_weights(replace(what, models=gone))
    require_weights(what)


def test_a_folder_keeps_its_scale(tmp_path: Path) -> None:
    what = reproduction("table-1")
    keep_scale(what, tmp_path / "a", Scale(2))
    keep_scale(what, tmp_path / "a", Scale(2))
    with pytest.raises(DraftpickError, match="seeds: 2 there, 3 now"):
        keep_scale(what, tmp_path / "a", Scale(3))
    with pytest.raises(DraftpickError, match="name: table-1 there, table-3 now"):
        keep_scale(reproduction("table-3"), tmp_path / "a", Scale(2))
    (tmp_path / "a" / "scale.json").write_text("[")
    with pytest.raises(DraftpickError, match="damaged"):
        keep_scale(what, tmp_path / "a", Scale(2))


@pytest.mark.parametrize("option", ["seeds", "train", "test", "max-new-tokens"])
def test_a_scale_of_nothing(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table-1", f"--{option}", "0"]) == 2
    assert f"--{option} must be 1 or more" in capsys.readouterr().err


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table-7"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown reproduction 'table-7'; known: ")


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in REPRODUCTIONS)
    assert max(map(len, shown.splitlines())) <= 100


# -- the page -------------------------------------------------------------------------------------


def cell(speed: float, **more: Any) -> dict[str, Any]:
    speeds = dict.fromkeys(("speedup_vs_ar", "speedup_mean_over_tasks"), speed)
    ci95 = (speed - 0.1, speed + 0.1)
    return {**speeds, "ci95": ci95, "acceptance_rate": 0.5, "quality": 0.25, **more}


def measured(speeds: dict[str, float]) -> Measured:
    """Table 1's: the same speed of a method on all tasks in both runs."""

    def cells(speed: float, **more: Any) -> dict[str, Any]:
        return {task: cell(speed, **more) for task in ("overall", "translation", "summarization")}

    arms = {name: cells(speeds[name]) for name in ("autoregressive", "draft-en-de", "draft-sum")}
    seeds = {
        name: cells(speeds["policy"], speedup_vs_ar_deviation=0.02)
        for name in ("policy", "policy (dynamic)")
    }
    summary = {"arms": arms, "seeds": seeds, "oracle": cells(2.0), "questions": 4}
    runs = [run.name for run in reproduction("table-1").runs]
    every = speeds | {"policy (dynamic)": speeds["policy"]}
    walls = {name: walls_with(speed) for name, speed in every.items()}
    return Measured(dict.fromkeys(runs, summary), {}, dict.fromkeys(runs, walls))


def walls_with(speed: float, scatter: float = 0.0) -> dict[str, Any]:
    """Ten questions a task of ten tokens, a second each by plain decoding."""
    off = 1 + scatter * np.cos(np.arange(10))
    rows = np.array([[n, 10.0, 1 / (speed * off[n]), 10.0, 1.0] for n in range(10)])
    return {"translation": rows, "summarization": rows}


def test_a_page_has_ours_beside_theirs_and_a_verdict() -> None:
    what = reproduction("table-1")
    about = {"scale": {"seeds": 5, "questions": 4}, "seconds": 60.0}
    speeds = {"autoregressive": 1.0, "draft-en-de": 0.9, "draft-sum": 1.1, "policy": 1.2}
    told = as_json(what, measured(speeds), about)
    first = told["tables"]["Speed-up at temperature 1"]["greedy policy"]["translation"]
    assert first == {"value": 1.2, "deviation": 0.02, "ci95": (1.2 - 0.1, 1.2 + 0.1), "paper": 1.09}
    page = render(what, told)
    assert (
        "| greedy policy | `policy` | 1.20x ± 0.02 (1.10 to 1.30) | 1.09x | "
        "1.20x ± 0.02 (1.10 to 1.30) | 1.17x | 1.20x | 1.13x |"
    ) in page
    claim = "sampling: `policy` is faster than each drafter alone, mean of the tasks"
    assert f"| {claim} | holds |" in page
    slower = as_json(what, measured(speeds | {"policy": 1.0}), about)
    verdicts = {claim["says"]: claim["verdict"] for claim in slower["claims"]}
    beats = [word for says, word in verdicts.items() if "each drafter alone" in says]
    assert beats == ["does not hold"] * 4
    json.dumps(told)


def test_a_claim_whose_margin_is_within_its_noise_is_not_settled() -> None:
    found = measured({"autoregressive": 1.0, "draft-en-de": 0.9, "draft-sum": 0.8, "policy": 0.91})
    what = reproduction("table-1")
    noisy = walls_with(0.91, 0.3)
    walls = {run: dict(each) | {"policy (dynamic)": noisy} for run, each in found.walls.items()}
    told = as_json(what, replace(found, walls=walls), {})
    words = {claim["says"]: claim["verdict"] for claim in told["claims"]}
    beats = {says: word for says, word in words.items() if "each drafter alone" in says}
    assert {says: word for says, word in beats.items() if "dynamic" in says} == {
        f"{run}: `policy (dynamic)` is faster than each drafter alone, mean of the tasks": (
            "not settled"
        )
        for run in walls
    }
    assert sorted(beats.values()) == ["holds", "holds", "not settled", "not settled"]
    assert told["by_chance"] == [
        "sampling: `policy (dynamic)` is above every arm that it draws from on translation and "
        "summarization, and not with 95% confidence: that much is noise of the draws."
    ]


def test_margins_are_paired_by_question() -> None:
    """Questions differ far more than methods do; a question that one failed on is left out."""
    rng = np.random.default_rng(0)
    easy = rng.uniform(0.5, 2.0, 30)

    def walls(share: float) -> dict[str, Any]:
        return {"qa": np.array([[n, 10, 1 / (share * easy[n]), 10, 1] for n in range(30)])}

    both = {"one": walls(1.0), "other": walls(0.97), "few": {"qa": walls(0.97)["qa"][5:]}}
    found = Measured({}, {}, {"run": both})
    low, high = margin(found, "run", "one", "other", "qa")
    assert 0 < low < high < 0.1
    low, high = margin(found, "run", "few", "one", MEAN)
    assert -0.1 < low < high < 0
    apart = margin(found, "run", "one", None, "qa")
    assert apart[1] - apart[0] > 5 * (high - low)
    with pytest.raises(KeyError):
        margin(found, "run", "one", "nobody", "qa")


def answered(tokens: int, seconds: float, error: str | None = None) -> Answer:
    result = DecodeResult(
        "arm", [1], [1] * tokens, "", "length", tokens, 0, 0, [], tokens, 0, 0.0, 0.0, seconds, 0.0
    )
    return Answer((Turn(result, 1.0, 0.0, 0.0, seconds, tokens),), error)


def test_draws_are_pooled_by_question_and_their_deviation_is_told() -> None:
    def rows(fast: float, error: str | None = None) -> list[Row]:
        made = {"autoregressive": answered(10, 1.0), "arm": answered(10, 1 / fast, error)}
        return [Row(name, "qa", None, None, [], 0.0, dict(made)) for name in ("a", "b")]

    draws = [rows(1.0), rows(2.0)]
    pooled = together(draws)
    assert [row.answers["arm"].tokens for row in pooled] == [20, 20]
    whole = summarise(pooled, greedy=False)
    assert whole["arms"]["arm"]["qa"]["speedup_vs_ar"] == pytest.approx(20 / 1.5 / 10)
    told = spread(whole, [summarise(each, greedy=False) for each in draws])
    assert told["arm"]["overall"]["speedup_vs_ar"] == pytest.approx(1.5)
    assert told["arm"]["overall"]["speedup_vs_ar_deviation"] == pytest.approx(0.5**0.5)
    assert told["autoregressive"]["qa"]["speedup_vs_ar_deviation"] == 0
    walls = walls_of(pooled, {"both": ["arm", "autoregressive"]})
    assert walls["arm"]["qa"].tolist() == [[0, 20, 1.5, 20, 2], [1, 20, 1.5, 20, 2]]
    assert walls["both"]["qa"][0].tolist() == [0, 40, 3.5, 20, 2]
    failed = together([rows(1.0), rows(2.0, "no memory")])
    assert failed[0].answers["arm"].error == "no memory" and "qa" not in walls_of(failed, {})["arm"]


def test_a_claim_on_what_was_not_measured_has_no_verdict() -> None:
    claim = Claim("says", lambda found: found.value("sampling", "nobody", "math") > 1)
    assert verdict(claim, measured(dict.fromkeys(
        ("autoregressive", "draft-en-de", "draft-sum", "policy"), 1.0
    ))) == "cannot be said"  # fmt: skip


def test_rules_are_compared_at_the_target_s_own_quality() -> None:
    def cells(speed: float, quality: float) -> dict[str, Any]:
        return {"translation": {"speedup_vs_ar": speed, "quality": quality}}

    arms = {
        "autoregressive": cells(1.0, 0.30), "opt@0.1": cells(1.2, 0.31), "opt@0.3": cells(1.6, 0.2),
        "diff@0.1": cells(1.1, 0.30), "diff@0.3": cells(0.9, 0.4), "chow@0.1": cells(2.0, 0.29),
    }  # fmt: skip
    found = Measured({"sampling": {"arms": arms, "oracle": {}}}, {})
    assert at_quality(found, "sampling", "opt@") == 1.2
    assert at_quality(found, "sampling", "diff@") == 1.1
    assert in_time(found, "sampling", "diff@") == 0.30
    verdicts = {one.says: verdict(one, found) for one in reproduction("speccascade").claims}
    assert [holds for says, holds in verdicts.items() if "diff" in says] == ["holds"] * 2
    chow = "OPT is faster than chow where each has at least the target's own BLEU"
    assert verdicts[chow] == "cannot be said"


# -- end to end -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not (FAMILY / "target").is_dir(), reason="not in a clone")
def test_a_small_one_from_end_to_end_and_on_after_a_kill(tmp_path: Path) -> None:
    what, scale = reproduction("table-1"), Scale(seeds=2, train=3, test=1, max_new_tokens=6)
    what = replace(
        what,
        curves=(Curve("Judged", "queries", {"all": "policy"}),),
        runs=what.runs[:1],
        tables=what.tables[:3],
    )
    told = write(what, tmp_path, scale)
    assert json.loads((tmp_path / "table-1.json").read_text()) == json.loads(json.dumps(told))
    cells = told["tables"]["Speed-up at temperature 1"]
    assert all(figure["value"] > 0 for row in cells.values() for figure in row.values())
    point = told["curves"]["Judged"]["all"]
    assert point["queries"] == 2 and point["oracle"] >= point["dynamic"] > 0
    assert point["share of draft-en-de"] + point["share of draft-sum"] == pytest.approx(1)
    policies = [load(tmp_path / "policies" / f"policy.{seed}") for seed in range(2)]
    assert [policy.origin.options["baseline"] for policy in policies] == ["none", "none"]
    rows = tmp_path / "measured" / "sampling" / "draw-2" / "rows.jsonl"
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text(lines[0] + lines[1][:100])  # killed while it wrote the second question
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npz")} | {
        p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.parquet")
    }
    write(what, tmp_path, scale)
    assert rows.read_text().splitlines(keepends=True)[0] == lines[0]
    assert len(rows.read_text().splitlines()) == 2
    assert stamps == {p: p.stat().st_mtime_ns for p in stamps}, "nothing is collected anew"
