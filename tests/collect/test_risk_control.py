"""Risk control over a collection: `draftpick train --max-loss`."""

from __future__ import annotations

import json
from pathlib import Path

from collect_fakes import FakeEngine, FakeRecipe, make_queries, sweep
from typer.testing import CliRunner, Result

from collect.sweeps.batch import SweepOptions
from policies import load
from router.cli import make_app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(make_app(), [str(a) for a in arguments])


def test_train_controls_the_risk(tmp_path: Path) -> None:
    rewards, engine = tmp_path / "rewards", FakeEngine()
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    sweep(engine, make_queries(20), rewards, SweepOptions(max_new_tokens=8))
    common: list[object] = ["train", "--rewards", rewards, "--out", tmp_path / "policy"]
    common += ["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--max-loss", 0.2]
    record = json.loads(run(*common, "--json").stdout)["guarantee"]
    assert (record["max_loss"], record["confidence"]) == (0.2, 0.95)
    assert record["queries"] == 48  # half of the four fifths that are not held out
    assert record["arm_losses"] == {"ngram": 0.5}  # of four words it writes two
    rows = {row["name"]: row for row in record["choices"]}
    assert rows["policy"]["loss"]["mean"] == 0 and rows["fixed/ngram"]["loss"]["mean"] == 0.5
    result = run(*common, "--in-expectation")
    assert result.exit_code == 0, (result.output, result.exception)
    said = ("24 held-out queries at temperature 0", "best lossless (", "best controlled (")
    assert all(words in result.stdout for words in (*said, "No lossy arm"))
    made = load(tmp_path / "policy")
    assert made.origin.reward_name.startswith("modelled")
    assert "temperature" in made.origin.features
