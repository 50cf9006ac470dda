"""`draftpick specbench --sweep` on a toy target whose lossless arms agree exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_engine import ToyEngine

from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.records import Request, Sampling
from policies.errors import PolicyError
from router import cli
from router.routing import loading
from router.routing.router import Router
from router.specbench import markdown, track
from router.specbench.bench import specbench
from router.specbench.protocol import load_questions
from router.specbench.sweep import load_sweep

SWEEP = """
sweep:
  length:
    arm: {kind: max_gram, shortest: 1}
    field: length.k
    values: [1, 4]
arms:
  copying: {kind: max_gram}
"""
REQUEST = Request(max_new_tokens=24, seed=0)


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def run(
    sweep_file: Path, questions: Path, out: Path, request: Request = REQUEST,
    engine: ToyEngine | None = None,
) -> dict[str, Any]:  # fmt: skip
    sweep = load_sweep(sweep_file)
    asked = load_questions([questions], limit=1)
    engine = engine or ToyEngine(sweep.arms)
    router = Router(engine, None)
    return specbench(router, asked, request, out, hardware={"cpu": "none"}, quiet=True, sweep=sweep)


def test_everything_is_written(sweep_file: Path, question_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = run(sweep_file, question_file, out)
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert sorted(path.name for path in out.iterdir()) == [
        "answers", "arms.yaml", "plots", "rows.jsonl", "run.json", "summary.json", "summary.md",
    ]  # fmt: skip
    assert (out / "plots" / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert summary["tasks"] == {"mt_bench": 1, "translation": 1, "math": 1}
    assert [curve["name"] for curve in summary["sweep"]["curves"]] == ["length", "copying"]
    overall = {p["arm"]: p for p in summary["sweep"]["points"] if p["task"] == "overall"}
    assert list(overall) == ["autoregressive", "copying", "length@1", "length@4"]
    assert all(p["quality"] == {"agreement": 1.0} for p in overall.values()), "lossless"
    assert all(p["latency"] > 0 for p in overall.values())
    assert overall["autoregressive"]["latency"] == 1.0
    assert summary["arms"]["length@4"]["overall"]["mean_accepted"] > 1, "it drafted with success"
    main = {(p["task"], p["measure"]) for p in markdown.main_panels(summary)}
    assert main == {("overall", "agreement"), ("translation", "bleu"), ("math", "exact_match")}
    page = (out / "summary.md").read_text()
    assert "| length@4 |" in page and "translation, BLEU" in page and "| length |" in page


def test_sampled_answers_are_judged_by_the_greedy_ones(
    sweep_file: Path, question_file: Path, tmp_path: Path
) -> None:
    hot = replace(REQUEST, sampling=Sampling(temperature=1.0))
    engine = ToyEngine(load_sweep(sweep_file).arms)
    summary = run(sweep_file, question_file, tmp_path / "out", hot, engine)
    agreement = {
        p["arm"]: p["quality"]["agreement"]
        for p in summary["sweep"]["points"]
        if p["task"] == "overall"
    }
    assert all(0 <= value < 1 for value in agreement.values())
    counted = [arm for arm, temperature in engine.asked if temperature == 0]
    assert set(counted) == {"autoregressive"}, "the target alone is asked for greedy answers"
    assert len({arm for arm, temperature in engine.asked if temperature == 1}) == 4

    engine.asked.clear()
    run(sweep_file, question_file, tmp_path / "out", hot, engine)
    assert engine.asked == [], "a finished run asks nothing again"


def test_a_changed_sweep_wants_another_folder(
    sweep_file: Path, question_file: Path, tmp_path: Path
) -> None:
    run(sweep_file, question_file, tmp_path / "out")
    before = (tmp_path / "out" / "arms.yaml").read_text()
    sweep_file.write_text(SWEEP.replace("[1, 4]", "[1, 4, 8]"))
    with pytest.raises(DraftpickError, match="other settings"):
        run(sweep_file, question_file, tmp_path / "out")
    assert (tmp_path / "out" / "arms.yaml").read_text() == before


def test_an_arm_that_fails_leaves_the_others(
    sweep_file: Path, question_file: Path, tmp_path: Path
) -> None:
    engine = ToyEngine(load_sweep(sweep_file).arms)
    engine.fails = "length@4"
    summary = run(sweep_file, question_file, tmp_path / "out", engine=engine)
    assert {e["method"] for e in summary["errors"]} == {"length@4"}
    assert "length@4" not in {p["arm"] for p in summary["sweep"]["points"]}
    assert "length@4: 3 answers failed" in (tmp_path / "out" / "summary.md").read_text()


def test_what_is_not_reached_says_so() -> None:
    panel = {
        "task": "qa", "measure": "rouge_l", "main": True, "target_quality": 0.5,
        "readings": [{"curve": "a", "latency_at_target_quality": None,
                      "latency_within_one_point": 0.75, "best_quality": 0.495,
                      "best_quality_latency": 1.0}],
    }  # fmt: skip
    _, rows = markdown.panel_table(panel)
    assert rows == [["a", "not reached", "0.750", "49.5%", "1.000"]]
    assert markdown.panel_title(panel) == "qa, ROUGE-L; the target alone: 50.0%"


def test_a_sweep_that_cannot_be_is_told_before_a_model_is_loaded(
    question_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(targets, "load_backend", lambda *_, **__: pytest.fail("it was loaded"))
    path = tmp_path / "sweep.yaml"
    path.write_text("sweep: {a: {arm: {kind: beam}, field: beams, values: [2, 3]}}")
    arguments = ["specbench", "--sweep", str(path), "--out", str(tmp_path / "out"), "--limit", "1"]
    arguments += ["--questions", str(question_file), "--temperature", "1", "--target", "x"]
    assert cli.main(arguments) == 2
    assert "'a@2' is a beam search, which draws nothing" in capsys.readouterr().err


@pytest.fixture
def toy_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_engine", lambda options, *_: ToyEngine(options.arms))


def test_the_command_logs_to_mlflow(
    toy_models: None, sweep_file: Path, question_file: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path}/mlflow.db"
    arguments = [
        "specbench", "--sweep", str(sweep_file), "--out", str(tmp_path / "out"),
        "--questions", str(question_file), "--limit", "1", "--max-new-tokens", "8",
        "--tracking-uri", store,
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "length@4" in captured.out and "math, exact match" in captured.out
    assert "draftpick-tradeoff" in captured.err
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("draftpick-tradeoff")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["max_new_tokens"] == "8"
    assert logged.data.metrics["overall/length_4/agreement"] == 1.0
    assert logged.data.metrics["overall/length/agreement/latency_at_target_quality"] > 0
    assert {"draftpick.git_sha", "draftpick.hardware"} <= logged.data.tags.keys()
    files = {artifact.path for artifact in client.list_artifacts(logged.info.run_id)}
    assert files == {"summary.json", "summary.md", "tradeoff.png", "arms.yaml"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--max-new-tokens", "0"], "at least 1"),
        (["--tasks", "cooking"], "unknown task 'cooking'"),
        (["--limit", "0"], "at least 1"),
        (["--config", "arms.yaml"], "--sweep names its own arms"),
        (["--tracking-uri", "sqlite:////proc/nowhere/mlflow.db"], "MLflow"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    options: list[str], words: str, sweep_file: Path, question_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "load_engine", load)
    out = tmp_path / "out"
    arguments = ["specbench", "--sweep", str(sweep_file), "--out", str(out)]
    arguments += ["--questions", str(question_file)]
    assert cli.main([*arguments, *options]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_store_without_a_sweep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["specbench", "--out", str(tmp_path / "b"), "--tracking-uri", "x"]) == 2
    assert "--tracking-uri and --experiment need --sweep FILE" in capsys.readouterr().err


def test_an_unreachable_store_is_a_policy_error(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database at all")
    with pytest.raises(PolicyError, match="not an SQLite database"):
        track.reach(f"sqlite:///{tmp_path}/mlflow.db")
