"""At 80 columns every table shows all its figures, each in one piece."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from policy_tables import table, with_features
from rich.console import Console
from router_fakes import FakePolicy, at_eighty
from typer.testing import CliRunner

from collect.sweeps.progress import SweepProgress
from decoders.common.terminal import progress
from decoders.options import EngineOptions
from decoders.records import Request
from decoders.testing.fake_engine import FakeEngine
from policies import RewardTable
from policies.selection.headroom import headroom
from policies.tracking.run import Task, train_run
from router.cli import make_app
from router.commands.arms import arms_table
from router.commands.headroom import headroom_tables
from router.commands.models import acceptance, megabytes, millions, models_json, models_tables
from router.commands.train.command import run_tables
from router.routing.router import Router
from router.specbench import markdown
from router.specbench.bench import load_questions, specbench
from router.tabulated import for_terminal


def whole(text: str, cells: Any) -> None:
    for cell in cells:
        assert cell.strip("*") in text, cell


def test_arms() -> None:
    text = at_eighty([arms_table(EngineOptions())])
    figures = ["k=16", "min_confidence=0.0", "stop_below=0.12"]
    whole(text, ["autoregressive", "draft-general", *figures])
    assert "…" not in text


def test_models() -> None:
    text = at_eighty(models_tables(80))
    for card in models_json():
        figures = [millions(card["parameters"]), megabytes(card["size_bytes"])]
        whole(text, [card["name"], *figures, acceptance(card["acceptance"])])
    assert "…" not in text


def test_specbench(tmp_path: Path, question_file: Path) -> None:
    router = Router(FakeEngine(), FakePolicy())
    request, asked = Request(40), load_questions([question_file])
    summary = specbench(router, asked, request, tmp_path / "b", policy_label="p")
    # as many tasks as there are, and speeds as wide as they get
    cells = summary["arms"]["wide"]
    for task in ("rag", "summarization", "qa", "translation"):
        summary["tasks"].setdefault(task, 10)
        for arm in markdown.methods_of(summary).values():
            arm.setdefault(task, dict(cells["overall"]))
    made = markdown.sections(summary)[:3]
    text = at_eighty(for_terminal(made, 80))
    for one in made:
        for row in one.rows:
            whole(text, row)
    assert "…" not in text
    assert len(for_terminal(made, 200)) == 3, "each in one where there is room"


def large_table() -> RewardTable:
    """Names and figures as wide as they get."""
    rng = np.random.default_rng(0)
    arms = ["autoregressive", "max-gram-adaptive", "draft-general-long", "recurrent"]
    x = rng.normal(size=(120, 4)).astype(np.float32)
    rewards = 300 + 20 * rng.normal(size=(120, 4))
    rewards[:, 1] += 300 * (x[:, 0] > 0)
    features = {"temperature": np.arange(120) % 3 / 2, "log-prompt-length": np.exp(x[:, 1])}
    made = with_features(table(x, rewards, arms), **features)
    tasks = [("summarization", "translation")[i % 2] for i in range(120)]
    return replace(made, tasks=tasks, reward_name="measured@1")


def test_headroom() -> None:
    found = headroom(large_table())
    text = at_eighty(for_terminal(headroom_tables(found), 80))
    for one in found.choices:
        whole(text, [f"{one.mean:.4f}", f"{one.low:.4f} .. {one.high:.4f}"])
    for part in found.parts:
        whole(text, [part.name, part.arm, f"{part.fixed:.4f}", f"{part.oracle:.4f}"])
    assert "…" not in text


def test_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = large_table()
    run = train_run(Task(data, policy="regression", plain="autoregressive", held_out=0))
    text = at_eighty(for_terminal(run_tables(run), 80))
    for row in run.evaluation.rows:
        whole(text, [f"{row.mean:.4f}", f"{row.low:.4f} .. {row.high:.4f}"])
    for gain in (one.gain for one in run.guarded.tried):
        whole(text, [f"{gain.mean:.4f}", f"{gain.low:.4f} .. {gain.high:.4f}"])
    whole(text, ["oracle (optimistic)", "gap to the oracle closed", "worse than plain decoding"])
    whole(text, ["binned by temperature"])
    assert "…" not in text


def test_the_progress_of_a_collection_fits() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=80, color_system=None)
    now = SweepProgress(1960, 12880, 7, 1_000_000, 100.0)
    with progress("collecting", "answers", console) as tick:
        tick(now.done, now.total, now.figures)
    line = drawn.getvalue().splitlines()[-2]
    assert "1960/12880 answers, 10000 tokens/s, 7 errors" in line and "left" in line
    assert "\u2026" not in line


# -- every `--help`: a paragraph, examples, options ------------------------------------------------


GROUP: Any = typer.main.get_command(make_app())
COMMANDS = [(), *((name,) for name in sorted(GROUP.commands))]


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_log_text_says_all_that_it_keeps(command: str) -> None:
    words = " ".join(CliRunner().invoke(make_app(), [command, "--help"]).stdout.split())
    assert "(system prompt and earlier turns too)" in words


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "".join(command) or "draftpick")
def test_help_is_a_paragraph_examples_and_options(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(make_app(), [*command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    usage, paragraph, examples, *rest = result.stdout.strip().split("\n\n")
    assert usage.startswith("Usage: ")
    assert len(paragraph) <= 400 and len(paragraph.splitlines()) <= 3, paragraph
    heading, *lines = examples.splitlines()
    assert heading.strip() in ("Example:", "Examples:")
    own = " ".join(("draftpick", *command))
    assert any(line.strip().startswith(own) for line in lines)
    assert any(part.startswith("Options:") for part in rest)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not re.search(r"\{\w+\.\w+", result.stdout), "a list of names was not filled in"
    assert command or all(name in result.stdout for name in GROUP.commands)
