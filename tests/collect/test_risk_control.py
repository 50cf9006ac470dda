"""Risk control over a collection: `draftpick train --max-loss`."""

from __future__ import annotations

from pathlib import Path

from collect_fakes import FakeEngine, FakeRecipe, make_queries, sweep
from commands import Draftpick

from collect.sweeps.batch import SweepOptions
from policies import load


def test_train_controls_the_risk(tmp_path: Path, draftpick: Draftpick) -> None:
    rewards, engine = tmp_path / "rewards", FakeEngine()
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    sweep(engine, make_queries(20), rewards, SweepOptions(max_new_tokens=8))
    common: list[object] = ["train", "--rewards", rewards, "--out", tmp_path / "policy"]
    common += ["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--max-loss", 0.2]
    record = draftpick(*common, "--json").json["guarantee"]
    assert (record["max_loss"], record["confidence"]) == (0.2, 0.95)
    assert record["queries"] == 48  # half of the four fifths that are not held out
    assert record["arm_losses"] == {"ngram": 0.5}  # of four words it writes two
    rows = {row["name"]: row for row in record["choices"]}
    assert rows["policy"]["loss"]["mean"] == 0 and rows["fixed/ngram"]["loss"]["mean"] == 0.5
    shown = draftpick(*common, "--in-expectation").out
    said = ("24 held-out queries at temperature 0", "best lossless (", "best controlled (")
    assert all(words in shown for words in (*said, "No lossy arm"))
    made = load(tmp_path / "policy")
    assert made.origin.reward_name.startswith("modelled")
    assert "temperature" in made.origin.features
