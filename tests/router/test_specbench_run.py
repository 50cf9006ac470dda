import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_fakes import Killed
from router_fakes import FakePolicy

import policies
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.locks import sole_writer
from decoders.common.machine import Look
from decoders.records import Request, Sampling
from decoders.testing.fake_engine import FakeEngine
from router.routing.router import Router
from router.specbench import markdown
from router.specbench import run as run_module
from router.specbench.bench import load_questions, select, specbench
from router.specbench.candidates import policy_label
from router.specbench.compare import compared, read_measured
from router.specbench.journal import read_rows
from router.specbench.records import Row
from router.specbench.run import Asker, choose_methods

REQUEST = Request(max_new_tokens=16)
HARDWARE = {"cpu": "none"}
PAIR = ["autoregressive", "small"]


def bench(router: Router, questions: Path, out: Path, **options: Any) -> dict[str, Any]:
    asked = load_questions([questions])
    request = options.pop("request", REQUEST)
    return specbench(router, asked, request, out, hardware=HARDWARE, **options)


def test_everything_is_written(router: Router, question_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    summary = bench(router, question_file, out)
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["tasks"] == {"mt_bench": 3, "translation": 1, "math": 2}
    for cells in (*summary["arms"].values(), summary["routed"], summary["oracle"]):
        for name in ("overall", "mt_bench", "translation", "math"):
            assert {
                "tokens_per_s", "speedup_vs_ar", "ci95", "mean_accepted", "acceptance_rate",
                "quality",
            } <= cells[name].keys()  # fmt: skip
    assert summary["arms"]["autoregressive"]["overall"]["mean_accepted"] == 1.0
    assert summary["arms"]["autoregressive"]["overall"]["speedup_vs_ar"] == pytest.approx(1.0)
    assert summary["arms"]["wide"]["math"]["quality"] == 0.5
    assert 0 < summary["arms"]["wide"]["translation"]["quality"] < 1  # it was cut at 16 tokens
    assert summary["best_fixed"]["arm"] in summary["arms"]
    assert summary["policy_overhead_s"] > 0
    assert sum(summary["policy_choices"]["mt_bench"].values()) == 5  # turns
    assert summary["arms"]["wide"]["overall"]["differs_from_ar"] == 0
    page = (out / "summary.md").read_text()
    assert page.count("| wide |") >= 4 and "| by task | by question |" in page
    assert max(len(line) for line in page.splitlines() if line.startswith("|")) <= 80
    assert (out / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_turn_two_sees_the_arms_own_turn_one(
    router: Router, engine: FakeEngine, question_file: Path
) -> None:
    question = load_questions([question_file])[0]
    row = Asker(router, ["wide"], REQUEST).ask(question)
    asked = [text for _, text in engine.calls]
    assert asked == ["u:tell a story", "u:tell a story|a:TELL A STORY|u:shorter now"]
    told = [turn.result.text for turn in row.answers["wide"].turns]
    assert told == ["TELL A STORY", "SHORTER NOW"]


class LeavingEarly(FakeEngine):
    """Its arms say how many layers a token took, as CALM's do."""

    def decode(self, *args: Any, **options: Any) -> Any:
        return replace(super().decode(*args, **options), mean_layers=2.5)


def test_an_arm_that_leaves_early_is_measured_like_any(question_file: Path) -> None:
    router = Router(LeavingEarly(), None)
    row = Asker(router, ["wide"], REQUEST).ask(load_questions([question_file])[0])
    assert row.answers["wide"].error is None
    assert [turn.result.mean_layers for turn in row.answers["wide"].turns] == [2.5, 2.5]
    assert router.generate("hello", arm="wide").to_json()["mean_layers"] == 2.5


def test_rows_are_read_as_they_were_written(
    router: Router, question_file: Path, tmp_path: Path
) -> None:
    bench(router, question_file, tmp_path)
    rows = read_rows(tmp_path)
    assert [Row.from_json(json.loads(json.dumps(row.to_json()))) for row in rows] == rows
    (before, *_) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(before)["answers"]["wide"]["turns"][0]["result"]["arm"] == "wide"


def test_a_run_can_be_compared_with_another(
    router: Router, question_file: Path, tmp_path: Path
) -> None:
    bench(router, question_file, tmp_path)
    found = read_measured(tmp_path)
    answers = [answer for row in read_rows(tmp_path) for answer in row.answers.values()]
    results = [turn.result for each in answers for turn in each.turns]
    assert len(found) == len(answers)
    assert sum(each.sums[0] for each in found) == sum(each.decoded for each in answers) > 0
    assert sum(each.sums[5] for each in found) == sum(each.rounds for each in results) > 0
    assert {change.ratio for change in compared(found, found)} == {1.0}


def test_rows_of_another_version_are_refused(router: Router, question_file: Path) -> None:
    out = question_file.parent / "out"
    bench(router, question_file, out)
    path = out / "rows.jsonl"
    first, *_ = path.read_text().splitlines()
    row = json.loads(first)
    turn = row["answers"]["wide"]["turns"][0]
    turn |= turn.pop("result")  # as they were once written: the decode's fields beside its own
    path.write_text(json.dumps(row) + "\n")
    before = path.read_bytes()
    with pytest.raises(DraftpickError, match=r"rows\.jsonl:1 is not a row of this version"):
        read_rows(out)
    assert path.read_bytes() == before


def test_methods_are_interleaved_in_a_seeded_order(
    router: Router, question_file: Path, tmp_path: Path
) -> None:
    bench(router, question_file, tmp_path / "a")
    bench(router, question_file, tmp_path / "b")
    orders = [row.order for row in read_rows(tmp_path / "a")]
    assert orders == [row.order for row in read_rows(tmp_path / "b")]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(o) == ["autoregressive", "routed", "small", "wide"] for o in orders)


def test_a_killed_run_goes_on(question_file: Path, tmp_path: Path) -> None:
    out, policy = tmp_path / "bench", FakePolicy()

    class Dying(FakeEngine):
        def decode(self, arm: str, prompt_ids: list[int], *rest: Any, **named: Any) -> Any:
            if "Guten" in self.tokenizer.decode(prompt_ids):
                raise Killed
            return super().decode(arm, prompt_ids, *rest, **named)

    with pytest.raises(Killed):
        bench(Router(Dying(), policy), question_file, out)
    assert [row.question_id for row in read_rows(out)] == ["81"], "the tasks take turns"
    with (out / "rows.jsonl").open("a") as stream:
        stream.write('{"question_id": "241", "ta')  # a write that the kill cut short
    engine = FakeEngine()
    summary = bench(Router(engine, policy), question_file, out)
    assert summary["questions"] == 6
    assert [row.question_id for row in read_rows(out)] == ["81", "82", "241", "401", "83", "402"]
    assert not any("tell a story" in text for _, text in engine.calls)

    engine.calls.clear()
    bench(Router(engine, policy), question_file, out)
    assert engine.calls == [], "a finished run asks nothing again"


def test_a_stopped_run_is_summed_up_without_asking_and_goes_on_with_more_questions(
    router: Router, engine: FakeEngine, question_file: Path, tmp_path: Path
) -> None:
    asked = load_questions([question_file])
    with pytest.raises(DraftpickError, match="holds no specbench run"):
        specbench(router, asked, REQUEST, tmp_path / "new", ask=False)
    assert not (tmp_path / "new").exists()
    few = load_questions([question_file], limit=1)
    out = tmp_path / "stopped"
    whole = specbench(router, few, REQUEST, out, hardware=HARDWARE)
    engine.calls.clear()
    summary = specbench(router, asked, REQUEST, out, hardware=HARDWARE, ask=False)
    assert summary | {"written": None} == whole | {"written": None} and not engine.calls
    rest = [question for question in asked if question.id not in {q.id for q in few}]
    with pytest.raises(DraftpickError, match="none of these questions"):
        specbench(router, rest, REQUEST, out, ask=False)
    with sole_writer(out), pytest.raises(DraftpickError, match="another process is writing"):
        bench(router, question_file, out)
    assert bench(router, question_file, out)["questions"] == len(read_rows(out)) == 6
    fresh = "".join(text for _, text in engine.calls)
    assert "Guten" not in fresh, "what was asked before is not asked again"


def test_a_run_goes_on_by_the_same_passes_on_the_same_machine_alone(
    router: Router, engine: FakeEngine, question_file: Path, tmp_path: Path
) -> None:
    bench(router, question_file, tmp_path)
    engine.timed_by = "slower fakes"
    with pytest.raises(DraftpickError, match='timed_by: "fakes" there, "slower fakes" now'):
        bench(router, question_file, tmp_path)
    assert bench(router, question_file, tmp_path, ask=False)["questions"] == 6
    known = tmp_path / "run.json"
    before = {"timed_by", "context"}  # of a version that did not say them
    kept = {
        name: each for name, each in json.loads(known.read_text()).items() if name not in before
    }
    known.write_text(json.dumps(kept))
    assert bench(router, question_file, tmp_path)["questions"] == 6


def test_a_failing_question_is_an_error_row(question_file: Path, tmp_path: Path) -> None:
    router = Router(FakeEngine(fails="6 + 7"), FakePolicy())
    summary = bench(router, question_file, tmp_path / "bench")
    assert {(e["question_id"], e["method"]) for e in summary["errors"]} == {
        ("402", method) for method in ("autoregressive", "small", "wide", "routed")
    }
    assert "told to fail" in summary["errors"][0]["error"]
    page = (tmp_path / "bench" / "summary.md").read_text()
    assert "small: 1 answers failed and are left out (" in page and "told to fail" in page
    assert summary["arms"]["wide"]["math"]["questions"] == 1
    answers = (tmp_path / "bench" / "answers" / "fake-target-wide.jsonl").read_text()
    assert "402" not in [str(json.loads(line)["question_id"]) for line in answers.splitlines()]


def test_one_arm_that_fails_leaves_the_others(question_file: Path, tmp_path: Path) -> None:
    class Half(FakeEngine):
        def decode(self, arm: str, *rest: Any, **named: Any) -> Any:
            if arm == "small":
                raise RuntimeError("small is broken")
            return super().decode(arm, *rest, **named)

    summary = bench(Router(Half(), None), question_file, tmp_path / "b")
    assert summary["arms"]["small"]["overall"] is None
    assert summary["arms"]["wide"]["overall"]["questions"] == 6
    assert summary["best_fixed"]["arm"] in ("autoregressive", "wide")  # by the clock
    assert summary["routed"] is None and summary["policy_choices"] is None


def test_spec_bench_can_read_the_answers(
    router: Router, question_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    bench(router, question_file, out)
    files = {path.stem for path in (out / "answers").iterdir()}
    assert files == {f"fake-target-{m}" for m in ("autoregressive", "small", "wide", "routed")}
    rows = [
        json.loads(line)
        for line in (out / "answers" / "fake-target-wide.jsonl").read_text().splitlines()
    ]
    assert [row["question_id"] for row in rows] == [81, 82, 83, 241, 401, 402]
    assert [row["category"] for row in rows][-3:] == [
        "translation", "math_reasoning", "math_reasoning",
    ]  # fmt: skip
    assert rows[1]["category"] == "math"  # MT-Bench's, not the word problems
    for row in rows:
        assert set(row) == {
            "question_id", "category", "answer_id", "model_id", "choices", "tstamp",
        }  # fmt: skip
        (choice,) = row["choices"]
        assert set(choice) == {
            "index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths",
        }  # fmt: skip
        turns = len(choice["turns"])
        assert turns == len(choice["new_tokens"]) == len(choice["wall_time"])
        assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
        # every token but each turn's first, which the prefill gives, comes out of a round
        assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"]) - turns


def disturbed_by(monkeypatch: pytest.MonkeyPatch, *cores: float) -> Iterator[float]:
    """Let every answer take a second, while others keep so many cores busy, then none."""
    clock, busy = count(), chain(cores, repeat(0.0))
    monkeypatch.setattr(run_module, "look", lambda: Look(float(next(clock)), 0.0, 0.0))
    monkeypatch.setattr(run_module, "others", lambda before, after: next(busy))
    return busy


def test_a_disturbed_question_is_asked_again(
    question_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = disturbed_by(monkeypatch, 0.1, 0.9, 0.8, 0.8, 0.2, 0.1)
    summary = bench(Router(FakeEngine(), None), question_file, tmp_path, arms=PAIR)
    first = read_rows(tmp_path)[0]
    assert [first.answers[method].others for method in first.order] == [0.2, 0.1]
    assert not first.disturbed and summary["disturbed"] == 0
    assert next(busy) == 0.0
    assert not any("Other programs" in said for said in markdown.headline(summary))


def test_what_stays_disturbed_is_told(
    question_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed_by(monkeypatch, 0.9, 0.0, 0.7, 0.0, 0.8, 0.0)
    summary = bench(Router(FakeEngine(), None), question_file, tmp_path, arms=PAIR)
    rows = read_rows(tmp_path)
    best_try = [rows[0].answers[method].others for method in rows[0].order]
    assert best_try == [0.7, 0.0]
    assert summary["disturbed"] == 1
    said = next(said for said in markdown.headline(summary) if "Other programs" in said)
    assert f"1 of {len(rows)} questions" in said
    medians = [
        row.answers["small"].tokens / row.answers["small"].wall_s
        / (row.answers["autoregressive"].tokens / row.answers["autoregressive"].wall_s)
        for row in rows
    ]  # fmt: skip
    found = summary["arms"]["small"]["overall"]["speedup_median"]
    assert found == pytest.approx(float(np.median(medians)))


def test_sampling_leaves_out_the_comparison_of_ids(
    router: Router, question_file: Path, tmp_path: Path
) -> None:
    request = replace(REQUEST, sampling=Sampling(temperature=0.8))
    summary = bench(router, question_file, tmp_path / "bench", request=request)
    assert summary["arms"]["wide"]["overall"]["differs_from_ar"] is None


def test_progress_is_seen_without_a_terminal(
    router: Router, question_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = router, load_questions([question_file]), REQUEST, tmp_path / "bench"
    specbench(*arguments, arms=["wide"], policy_label="p")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "3 methods: 0 of 6 questions, 0 s passed"
    assert said[-1].startswith("3 methods: 6 of 6 questions, ")


def test_every_question_and_turn_has_a_seed_and_methods_share_it(
    router: Router, engine: FakeEngine, question_file: Path, tmp_path: Path
) -> None:
    bench(router, question_file, tmp_path / "bench", arms=["wide"])
    text = {"tell a story": [], "shorter now": [], "write a poem please": []}
    for (_, asked), seed in zip(engine.calls, engine.seeds, strict=True):
        text.get(asked.rpartition("u:")[2], []).append(seed)
    assert [len(set(seeds)) for seeds in text.values()] == [1, 1, 1]
    assert len({seeds[0] for seeds in text.values()}) == 3


def test_arms_are_chosen_by_name(router: Router, question_file: Path, tmp_path: Path) -> None:
    summary = bench(router, question_file, tmp_path / "bench", arms=["wide"])
    assert list(summary["arms"]) == ["autoregressive", "wide"]
    with pytest.raises(NoSuchName, match="unknown arm 'huge'"):
        bench(router, question_file, tmp_path / "other", arms=["huge"])


def test_a_limit_spreads_over_categories_and_grows(question_file: Path) -> None:
    queries = load_questions([question_file])
    two = select(queries, 2, seed=0)
    assert {q.category for q in two if q.task == "mt_bench"} == {"writing", "math"}
    assert [q.id for q in two] == [q.id for q in queries if q in two], "file order is kept"
    one = select(queries, 1, seed=0)
    assert {q.id for q in one} <= {q.id for q in two}
    assert select(queries, None, seed=0) == queries


@pytest.mark.parametrize("task", ["note", "choices"])
def test_a_task_that_a_summary_has_no_place_for(task: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"id": "a", "task": task, "turns": ["?"]}))
    with pytest.raises(DraftpickError, match=f"no task may be called '{task}'"):
        load_questions([path])


@pytest.mark.parametrize("arm", ["routed", "oracle"])
def test_an_arm_that_is_named_like_another_row(arm: str, engine: FakeEngine) -> None:
    engine.tokens_a_round = engine.tokens_a_round | {arm: 2}
    with pytest.raises(DraftpickError, match=f"the arm '{arm}' is named like another row"):
        choose_methods(Router(engine, None), None)


def test_a_task_of_which_no_question_is_there(question_file: Path) -> None:
    with pytest.raises(DraftpickError):
        load_questions([question_file], tasks=["rag"])


def test_a_policy_label_changes_with_its_content(tmp_path: Path) -> None:
    one, two = (policies.fixed_policy(PAIR, arm) for arm in PAIR)
    (tmp_path / "policy.json").write_text("{}")
    before = policy_label(tmp_path, one)
    (tmp_path / "policy.json").write_text("[]")
    assert policy_label(tmp_path, one) != before
    labels = [policy_label("models:/x@champion", policy) for policy in (one, two, two)]
    assert labels[0] != labels[1] == labels[2]  # as after a promotion
