"""`draftpick theory`: figures, tables, pictures, and the user's mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from decoders.common.errors import DraftpickError
from decoders.costs.theory import speculative
from decoders.engine import Engine
from decoders.options import EngineOptions
from decoders.testing.toys import ToyBackend
from router.theory.command import theory

app = typer.Typer()
app.command()(theory)
app.command("other")(lambda: None)  # with one command alone typer would not want its name


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["theory", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return str(found.stdout)


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_a_drafter() -> None:
    found = as_json("--acceptance", "0.7", "--cost", "0.1", "--longest", "6")
    (drafter,) = found["drafters"]
    assert [row["k"] for row in drafter["over_k"]] == list(range(7))
    assert drafter["best_k"] == 4
    assert drafter["speedup"] == pytest.approx(speculative(0.7, 0.1, 4))
    assert drafter["over_k"][2]["tokens"] == pytest.approx(1 + 0.7 + 0.49)
    assert drafter["over_k"][2]["cost"] == pytest.approx(1.2)
    assert set(found) == {"drafters"}
    shown = run("--acceptance", "0.7", "--cost", "0.1")
    assert f"{drafter['speedup']:.2f}x │ best" in shown


def test_costs_by_size() -> None:
    found = as_json("--acceptance", "0.7", "--parameters", "100e6,5e6")
    assert found["drafters"][0]["cost"] == pytest.approx(0.05)


def test_two_drafters_and_their_cascades() -> None:
    arguments = ["--acceptance", "0.8,0.6", "--cost", "0.2,0.01"]
    found = as_json(*arguments, "--inner-acceptance", "0.7")
    alone = max(drafter["speedup"] for drafter in found["drafters"])
    assert found["horizontal"]["speedup"] > alone
    assert found["vertical"]["speedup"] > alone
    assert "vertical" not in as_json(*arguments)
    shown = run(*arguments, "--inner-acceptance", "0.7")
    assert "horizontal cascade" in shown and "vertical cascade" in shown


def test_table_1() -> None:
    assert [round(row["ewif"], 2) for row in as_json("--table1")] == [
        2.65, 2.96, 3.03, 3.61, 3.75, 3.93,
    ]  # fmt: skip
    assert "3.93" in run("--table1")


def test_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "new" / "theory.png"
    run("--acceptance", "0.8,0.6", "--cost", "0.2,0.01", "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("nested", [True, False])
def test_measured_costs_from_a_file(nested: bool, tmp_path: Path) -> None:
    costs = {"verify_s": [0.010, 0.010, 0.020], "draft_s": {"small": 0.001}}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": 1, "costs": costs} if nested else costs))
    arguments = ["--acceptance", "0.9", "--costs", str(path), "--arm", "small", "--longest", "4"]
    (drafter,) = as_json(*arguments)["drafters"]
    assert drafter["best_k"] == 1  # a wider pass costs too much
    assert [row["cost"] for row in drafter["over_k"]] == pytest.approx(
        [1.0, 1.1, 2.2, 0.3 + 2.5, 0.4 + 3.0]
    )


class Words:
    """A tokenizer of one token a letter, without a chat template."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 100 for letter in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`Engine.from_options` on a toy target; the recipes it was given."""
    asked: list[Any] = []

    def load(options: EngineOptions, **_: Any) -> Engine:
        asked.append(options.recipes())
        return Engine(ToyBackend.random(100, seed=3), asked[-1], tokenizer=Words())

    monkeypatch.setattr(Engine, "from_options", load)
    return asked


def test_an_arm_measured_on_this_machine(loaded: list[Any], tmp_path: Path) -> None:
    arms = tmp_path / "arms.yaml"
    arms.write_text("arms: {copy: {kind: max_gram, shortest: 1, length: {k: 5}}}")
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"id": "1", "task": "qa", "turns": ["abcabcabc"]}\n')
    options = ["--measure", "copy", "--config", str(arms), "--longest", "3"]
    (drafter,) = as_json(*options, "--acceptance", "0.5")["drafters"]
    assert drafter["acceptance"] == 0.5 and drafter["cost"] > 0
    (drafter,) = as_json(*options, "--queries", str(queries))["drafters"]
    assert 0 <= drafter["acceptance"] < 1 and drafter["name"] == "copy"
    assert [arms["copy"].length.k for arms in loaded] == [1, 1], "single drafts are judged"


MISTAKES = [
    ([], "in one way"),
    (["--acceptance", "0.7"], "in one way"),
    (["--acceptance", "0.7", "--cost", "0.1", "--parameters", "2,1"], "in one way"),
    (["--cost", "0.1"], "give the acceptance rate"),
    (["--acceptance", "1.2", "--cost", "0.1"], "between 0 and 1, not 1.2"),
    (["--acceptance", "high", "--cost", "0.1"], "takes numbers such as"),
    (["--acceptance", "nan", "--cost", "0.1"], "between 0 and 1, not nan"),
    (["--acceptance", "0.5", "--cost", "-1"], "--cost must be 0 or more, not -1"),
    (["--acceptance", "0.5", "--cost", "inf"], "--cost must be 0 or more, not inf"),
    (["--acceptance", "0.5,0.4", "--cost", "0.1"], "2 acceptance rates and costs of 1"),
    (["--acceptance", "0.5", "--parameters", "0,1"], "the target's count first"),
    (["--acceptance", "0.5", "--parameters", "100"], "the target's count first"),
    (["--acceptance", ".5,.4,.3,.2", "--cost", ".1,.1,.1,.1"], "at most 3 drafters"),
    (["--acceptance", "0.5", "--cost", "0.1", "--inner-acceptance", "0.5"], "two drafters"),
    (["--acceptance", "0.5", "--costs", "x.json"], "go together"),
    (["--acceptance", "0.5", "--cost", "0.1", "--arm", "a"], "go together"),
    (["--acceptance", "0.5", "--costs", "nowhere.json", "--arm", "a"], "cannot read"),
    (["--acceptance", "0.5", "--cost", "0.1", "--queries", "q.jsonl"], "--queries measures"),
    (["--measure", "max-gram"], "give the acceptance rate"),
    (["--measure", "max-gram", "--queries", "nowhere.jsonl"], "no such query file"),
    (["--acceptance", "", "--cost", "0.1"], "takes numbers such as"),
    (["--measure", "huge", "--acceptance", "0.5"], "unknown arm 'huge'"),
    (["--measure", "autoregressive", "--acceptance", "0.5"], "does not draft one token after"),
    (
        ["--measure", "tree", "--config", "a.yaml", "--acceptance", "0.5"],
        "'tree' does not",
    ),
    (
        ["--measure", "exit", "--config", "a.yaml", "--acceptance", "0.5"],
        "'exit' does not",
    ),
    (
        ["--measure", "both", "--config", "a.yaml", "--acceptance", "0.5"],
        "'both' does not",
    ),
    (["--measure", "max-gram", "--acceptance", "0.5,0.4"], "one arm has one"),
    (["--acceptance", "0.5", "--cost", "0.1", "--out", "a.pdf"], "ends in .png"),
    (["--table1", "--cost", "0.1"], "takes no figures"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(
        "arms: {tree: {kind: tree, drafter: x, branch: [2]}, exit: {kind: early_exit, layer: 1, "
        "branch: [2]}, both: {kind: cs_drafting, models: [x, {kind: max_gram}], K: [[1, 1], "
        "[0, 1]]}}"
    )
    with pytest.raises(DraftpickError, match=words):
        run(*arguments)


def test_a_file_without_costs(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for text in ("[]", "{", '{"costs": {"verify_s": [], "draft_s": {}}}'):
        path.write_text(text)
        with pytest.raises(DraftpickError, match="holds no measured costs"):
            run("--acceptance", "0.5", "--costs", str(path), "--arm", "a")
