"""Risk control over a collection: its losses, and `draftpick train --max-loss`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from collect_fakes import FakeEngine, FakeRecipe, make_queries, sweep
from stored_tables import table_of
from typer.testing import CliRunner, Result

from collect.store.collection import Collection
from collect.sweeps.batch import SweepOptions
from decoders.common.errors import DraftpickError
from policies import load
from router.cli import make_app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(make_app(), [str(a) for a in arguments])


def test_losses(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries(1)
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    engine.batch.poison["replay small"] = engine.encode_chat(
        [{"role": "user", "content": queries[0].turns[0]}]
    )[0]
    sweep(engine, queries, tmp_path / "out", SweepOptions(max_new_tokens=8, batch_size=4))
    folder = tmp_path / "out"
    table = table_of(folder, "acceptance", arms=["small", "ngram"])
    made, similarity = table.losses, Collection.open(folder).outcomes_at()
    assert made is not None and len(table) == len(queries)
    for row, query in enumerate(table.query_ids):
        assert made[row, 1] == 1 - similarity[query]["ngram"].rouge_l
        failed = similarity[query]["small"].error is not None
        assert np.isnan(made[row, 0]) if failed else made[row, 0] == 0
    assert np.isnan(made[:, 0]).sum() == 1


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
    for words in (
        "24 held-out queries at temperature 0",
        "best lossless (",
        "best controlled (",
        "No lossy arm",
    ):
        assert words in result.stdout
    made = load(tmp_path / "policy")
    assert made.origin.reward_name.startswith("modelled")
    assert "temperature" in made.origin.features


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--confidence", 0.9], "give the largest loss"),
        (["--in-expectation"], "give the largest loss"),
        (["--policy", "risk-control"], "give the largest loss"),
        (["--max-loss", 0.1, "--policy", "knn"], "leave --policy knn out"),
        (["--max-loss", 0.1, "--in-expectation", "--confidence", 0.9], "leave one out"),
        (["--max-loss", 2], "above 0 and below 1"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, given: list[object], says: str) -> None:
    caught = run("train", "--rewards", tmp_path / "none", *given).exception
    assert isinstance(caught, DraftpickError)
    assert says in str(caught)
