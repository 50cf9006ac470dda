"""`draftpick theory`: figures, tables, pictures, and the user's mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from decoders.common.errors import DraftpickError
from decoders.costs.pass_costs import speculative
from router.cli import make_app


def run(*arguments: str) -> str:
    found = CliRunner().invoke(make_app(), ["theory", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return str(found.stdout)


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_a_drafter() -> None:
    found = as_json("--acceptance", "0.7", "--cost", "0.1", "--longest", "6")
    assert [row["k"] for row in found["over_k"]] == list(range(7))
    assert found["best_k"] == 4
    assert found["speedup"] == pytest.approx(speculative(0.7, 0.1, 4))
    assert found["over_k"][2]["tokens"] == pytest.approx(1 + 0.7 + 0.49)
    assert found["over_k"][2]["cost"] == pytest.approx(1.2)
    shown = run("--acceptance", "0.7", "--cost", "0.1")
    assert f"{found['speedup']:.2f}x │ best" in shown


def test_a_cost_by_size() -> None:
    found = as_json("--acceptance", "0.7", "--parameters", "100e6,5e6")
    assert found["cost"] == pytest.approx(0.05)


@pytest.mark.parametrize("nested", [True, False])
def test_measured_costs_from_a_file(nested: bool, tmp_path: Path) -> None:
    costs = {"verify_s": [0.010, 0.010, 0.020], "draft_s": {"small": 0.001}}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": 1, "costs": costs} if nested else costs))
    arguments = ["--acceptance", "0.9", "--costs", str(path), "--arm", "small", "--longest", "4"]
    found = as_json(*arguments)
    assert found["best_k"] == 1  # a wider pass costs too much
    assert [row["cost"] for row in found["over_k"]] == pytest.approx(
        [1.0, 1.1, 2.2, 0.3 + 2.5, 0.4 + 3.0]
    )


MISTAKES = [
    ([], "in one way"),
    (["--cost", "0.1", "--parameters", "2,1"], "in one way"),
    (["--parameters", "0,1"], "the target's count, then"),
    (["--parameters", "100"], "the target's count, then"),
    (["--parameters", "2,inf"], "the target's count, then"),
    (["--costs", "x.json"], "go together"),
    (["--cost", "0.1", "--arm", "a"], "go together"),
    (["--costs", "nowhere.json", "--arm", "a"], "cannot read"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes(arguments: list[str], words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        run("--acceptance", "0.5", *arguments)


@pytest.mark.parametrize("options", [["--cost", "0.1"], ["--acceptance", "1.2", "--cost", "0.1"],
                                     ["--acceptance", "0.5", "--cost", "-1"]])  # fmt: skip
def test_numbers_out_of_range_and_missing(options: list[str]) -> None:
    assert CliRunner().invoke(make_app(), ["theory", *options]).exit_code == 2


def test_a_file_without_costs(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for text in ("[]", "{", '{"costs": {"verify_s": [], "draft_s": {}}}'):
        path.write_text(text)
        with pytest.raises(DraftpickError, match="holds no measured costs"):
            run("--acceptance", "0.5", "--costs", str(path), "--arm", "a")
