"""`make reproduce`: what is declared fits together, and a family is reproduced end to end."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.reproduce import queries
from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.captions import captions
from benchmarks.reproduce.draws import margin, spread, together, walls_of
from benchmarks.reproduce.fronts import counts_of, fronts
from benchmarks.reproduce.page import as_json, render, verdict
from benchmarks.reproduce.records import MEAN, Claim, Curve, Measured, Point, Reproduction
from benchmarks.reproduce.registry import REPRODUCTIONS, reproduction
from benchmarks.reproduce.run import Scale, engine_options, keep_scale, require_weights, write
from benchmarks.reproduce.t5 import FAMILY
from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import DraftpickError
from decoders.records import DecodeResult
from policies import load
from policies.evaluation.bootstrap import resample
from router.specbench.bench import check_measures
from router.specbench.quality import bleu
from router.specbench.records import Answer, Row, Turn
from router.specbench.summary import summarise

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


def test_the_other_papers_rules_are_known_in_a_process_of_their_own() -> None:
    """Where nothing else has imported the plugins that bring them."""
    code = """
from benchmarks.reproduce.registry import reproduction
from benchmarks.reproduce.run import engine_options
for name in ("speccascade", "bild"):
    what = reproduction(name)
    engine_options(what, what.arms)
"""
    subprocess.run((sys.executable, "-c", code), check=True, cwd=Path(__file__).parent.parent)


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
    by_id = {query.id: query for query in queries.articles("train", 5000)}
    halves = [name.removesuffix("-first") for name in by_id if name.endswith("-first")]
    assert halves and all(
        by_id[name].group == by_id[f"{name}-first"].group is not None for name in halves
    )
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
    rows = np.array([[n, n, 10.0, 1 / (speed * off[n]), 10.0, 1.0] for n in range(10)])
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
        return {"qa": np.array([[n, n, 10, 1 / (share * easy[n]), 10, 1] for n in range(30)])}

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


def test_questions_of_one_source_are_resampled_together() -> None:
    """Thirty questions of three sources that are all alike within: no more than three are known."""

    def found(each: int) -> Measured:
        rows = [
            [n, n // each, 10, [0.5, 1.0, 0.8][n // each % 3], 10, 1.0] for n in range(3 * each)
        ]
        return Measured({}, {}, {"run": {"one": {"qa": np.array(rows)}}})

    three, thirty = (margin(found(each), "run", "one", None, "qa") for each in (1, 10))
    assert three == pytest.approx(thirty)


def answered(tokens: int, seconds: float, error: str | None = None, text: str = "") -> Answer:
    ids, times = [1] * tokens, (0.0, 0.0, seconds, 0.0)
    result = DecodeResult("arm", [1], ids, text, "length", tokens, 0, 0, [], tokens, 0, *times)
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
    assert walls["arm"]["qa"].tolist() == [[0, 0, 20, 1.5, 20, 2], [1, 1, 20, 1.5, 20, 2]]
    assert walls["both"]["qa"][0].tolist() == [0, 0, 40, 3.5, 20, 2]
    alike = [replace(row, group="both") for row in pooled]
    assert walls_of(alike, {})["arm"]["qa"][:, 1].tolist() == [0, 0]
    failed = together([rows(1.0), rows(2.0, "no memory")])
    assert failed[0].answers["arm"].error == "no memory" and "qa" not in walls_of(failed, {})["arm"]


def test_a_claim_on_what_was_not_measured_has_no_verdict() -> None:
    claim = Claim("says", lambda found: [margin(found, "sampling", "nobody", None, "math")])
    assert verdict(claim, measured(dict.fromkeys(
        ("autoregressive", "draft-en-de", "draft-sum", "policy"), 1.0
    ))) == "cannot be said"  # fmt: skip


def rows_of_rules(
    words: dict[str, tuple[float, str]], questions: int = 40, scatter: float = 0.0, draws: int = 1
) -> list[list[Row]]:
    """Captions of eight words; arm -> its speed-up, and what it writes in the last word's place."""
    made = []
    for _ in range(draws):
        rows = []
        for n in range(questions):
            right = [f"w{n}{i}" for i in range(8)]
            answers = {
                name: answered(10, 1 / (speed * np.exp(scatter * np.cos(n + len(name)))),
                               text=" ".join([*right[:-1], word or right[-1]]))
                for name, (speed, word) in {"autoregressive": (1.0, "x")}.items() | words.items()
            }  # fmt: skip
            rows.append(Row(str(n), "translation", None, " ".join(right), [], 0.0, answers))
        made.append(rows)
    return made


def of_rules(run: str, draws: list[list[Row]]) -> Measured:
    walls = walls_of(together(draws), {})
    return Measured({run: {"arms": {}}}, {}, {run: walls}, {run: counts_of(draws)})


def test_bleu_of_resampled_questions_is_that_of_their_texts() -> None:
    draws = rows_of_rules({"arm": (1.2, "")}, 6, draws=2)
    for n, word in enumerate(("a b c", "", "w0 w1", "w30 w31 w32 w33 x", "y", "z")):
        draws[1][n].answers["arm"] = answered(10, 1.0, text=word)
    found = fronts(of_rules("sampling", draws), "sampling", "translation")
    texts = [[row.answers["arm"].turns[0].result.text for row in rows] for rows in draws]
    references = [row.reference or "" for row in draws[0]]
    assert found.quality["arm"][0] == pytest.approx(
        np.mean([bleu(each, references) for each in texts])
    )
    twice = resample(6, 0)[0].astype(int)
    again = [[t for t, k in zip(each, twice, strict=True) for _ in range(k)] for each in texts]
    those = [r for r, k in zip(references, twice, strict=True) for _ in range(k)]
    assert found.quality["arm"][1] == pytest.approx(np.mean([bleu(each, those) for each in again]))
    for text in ("w00 w01 y", "y", "", "w00 w01 w02 y w04 w05", "w00 w01 w02 w03 w04 w05 w06 w07"):
        draws[0][0].answers["arm"] = answered(10, 1.0, text=text)
        alone = fronts(of_rules("sampling", [draws[0][:1]]), "sampling", "translation")
        assert alone.quality["arm"][0] == pytest.approx(bleu([text], references[:1]))


RULES = {
    "opt@0.1": (1.2, ""), "opt@0.3": (1.6, "y z"), "diff@0.1": (1.1, ""), "diff@0.3": (0.9, ""),
    "chow@0.1": (2.0, "y z"), "lossy@0.1": (1.19, ""), "lossless": (1.1, "x"),
}  # fmt: skip
TITLE = "OPT is faster than {} where each has at least the target's own BLEU"


def verdicts(name: str, found: Measured) -> dict[str, str]:
    return {one.says: verdict(one, found) for one in reproduction(name).claims}


def test_rules_are_compared_at_the_target_s_own_quality() -> None:
    found = verdicts("speccascade", of_rules("sampling", rows_of_rules(RULES)))
    assert found[TITLE.format("diff")] == "holds"
    assert found[TITLE.format("chow")] == "cannot be said", "none has the target's own quality"
    better = "OPT has more BLEU than {} within the target's own time"
    assert found[better.format("chow")] == "holds"
    assert found[better.format("lossy")] == "not settled", "the same answers"
    turned = RULES | {"diff@0.1": (1.4, "")}
    found = verdicts("speccascade", of_rules("sampling", rows_of_rules(turned)))
    assert found[TITLE.format("diff")] == "does not hold"


def test_a_rule_s_lead_within_its_noise_is_not_settled() -> None:
    found = verdicts("speccascade", of_rules("sampling", rows_of_rules(RULES, scatter=0.2)))
    assert found[TITLE.format("lossy")] == "not settled", "1.20 and 1.19"
    once = rows_of_rules(RULES)
    for n, row in enumerate(once[0]):  # as good as the target in all, by a half that is better
        words = (row.reference or "").split()
        text = " ".join(words if n % 2 else [*words[:-2], "y", "z"])
        row.answers["opt@0.1"] = answered(10, 1 / 1.2, text=text)
    found = verdicts("speccascade", of_rules("sampling", once))
    assert found[TITLE.format("diff")] == "not settled", "its quality may be less"


def test_bild_is_compared_within_a_point() -> None:
    arms = {"lossless": (1.1, "x"), "printed@1": (1.3, "x"), "keeping@1": (1.4, "y z z z")}
    found = verdicts("bild", of_rules("greedy decoding", rows_of_rules(arms)))
    assert list(found.values()) == ["holds", "cannot be said"]
    noisy = of_rules("greedy decoding", rows_of_rules(arms | {"printed@1": (1.12, "x")}, 40, 0.3))
    assert list(verdicts("bild", noisy).values()) == ["not settled", "cannot be said"]


def point(share: Any, earned: Any = 1.0, by_costs: Any = ()) -> Point:
    """Of three seeds and 20 queries, two of a source; arms as in Figure 2."""
    shares = np.broadcast_to(share, (3, 20))
    rest = {name: (1 - shares) / 2 for name in ("exit-1", "exit-2")}
    arms = {"draft-en-de": shares / 2, "draft-sum": shares / 2, **rest}
    rewards = np.ones((20, len(arms)))
    dynamic = np.array(np.broadcast_to(earned, (3, 20)))
    return Point(dynamic, dynamic, arms, rewards, np.array(by_costs), np.arange(20) // 2)


def test_a_figure_s_claims_have_margins() -> None:
    queries_, seeds = np.random.default_rng(0).normal(0, 0.2, 20), np.array([[0.3], [0.0], [-0.3]])
    title = "Speed-up of the dynamic policy by alpha"

    def alphas(first: Any, last: Any) -> list[str]:
        found = Measured({}, {title: {"0": point(first), "1": point(last)}})
        return list(verdicts("figure-2", found).values())

    assert alphas(0.6 + queries_, 0.5 + queries_) == ["holds", "does not hold"], "paired by query"
    assert alphas(0.5, 0.5) == ["not settled"] * 2
    assert alphas(0.55 + seeds, 0.5) == ["not settled"] * 2, "another training moves it as much"
    assert alphas(0.5 + seeds, 0.9 + seeds) == ["does not hold", "holds"]


def test_few_queries_do_within_the_error_of_costs() -> None:
    title = "Speed-up of the policy by the queries that it learnt from"
    spread_ = np.linspace(0.5, 1.5, 20)

    def said(few: float, by_costs: Any = (), whole: Any = ()) -> list[str]:
        each = {"64": point(0.5, few * spread_, by_costs), "192": point(0.5, spread_, whole)}
        return list(verdicts("figure-3", Measured({}, {title: each})).values())

    assert said(0.99) == ["holds"] and said(0.97) == ["does not hold"]
    assert said(0.985, [0.985] * 5, [1.0] * 5) == ["holds"]
    assert said(0.985, [0.965, 1.005, 0.985, 0.96, 1.01], [1.0] * 5) == ["not settled"]


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
