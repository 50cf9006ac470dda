"""Prediction alignment end to end on a target small enough to train in seconds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from collect.align import checkpoint, weights
from collect.align.calibration import batches
from collect.align.config import KINDS, AlignConfig
from collect.align.learners import Answers
from collect.align.recipe import Recipe
from collect.align.run import align
from collect.align.write import write_outputs
from decoders import Engine, Request
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.options import EngineOptions
from router.cli import make_app

WORDS = [f"w{i}" for i in range(40)]  # as conftest.py

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
RECIPE = Recipe(epochs=10, batch_tokens=256, lr=1e-2, matrix_lr=2e-2, seed=1)


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps(SIZES))
    return path


def config_for(
    kind: str, out: Path, target: Path, written: tuple[Path, Path], **more: Any
) -> AlignConfig:
    queries, outputs = written
    return AlignConfig(
        kind, out, (queries,), (outputs,), str(target), "cpu", vocab_size=38, width=32, **more
    )


def silent(now: dict[str, float]) -> None:
    pass


def arms_file(folder: Path, kind: str, drafter: Path) -> Path:
    path = folder / "arms.yaml"
    path.write_text(f"arms:\n  mine:\n    kind: {kind}\n    drafter: {drafter}\n")
    return path


def decoded_alike(target: Path, arms: Path) -> bool:
    engine = Engine.load(str(target), arms, dtype="float32", device="cpu")
    prompt = [5, 6, 7]
    request = Request(24, eos_ids=())
    answers = [engine.decode(name, prompt, request).ids for name in engine.arm_names]
    return answers[0] == answers[1]


def test_a_drafter_learns_what_the_target_writes(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    config = config_for("drafter", tmp_path / "out", target, written, start=sizes)
    acceptance = align(config, RECIPE, silent)
    assert acceptance["overall"] > 0.8
    card = json.loads((tmp_path / "out/model/card.json").read_text())
    assert card["acceptance"]["overall"] == pytest.approx(acceptance["overall"], abs=1e-4)
    assert card["held_out_queries"] > 0
    assert card["queries"] + card["held_out_queries"] == 160
    assert decoded_alike(target, arms_file(tmp_path, "neural", tmp_path / "out/model"))


def test_an_exit_adapter_learns_and_drafts(
    tmp_path: Path, target: Path, written: tuple[Path, Path]
) -> None:
    config = config_for("exit", tmp_path / "out", target, written, exit_layer=1)
    acceptance = align(config, RECIPE, silent)
    assert acceptance["overall"] > 0.5
    assert decoded_alike(target, arms_file(tmp_path, "early_exit", tmp_path / "out/model"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("--kind exits", "unknown kind"),
        ("--kind exit --exit-layer 3", "--exit-layer must be 1 to 2 for this target, not 3"),
    ],
)
def test_mistakes_are_told_before_the_target_writes(
    tmp_path: Path, target: Path, written: tuple[Path, Path], wrong: str, says: str
) -> None:
    out = tmp_path / "out"
    arguments = ["align", "--out", str(out), "--queries", str(written[0]), "--target", str(target)]
    with pytest.raises(DraftpickError, match=says):
        CliRunner().invoke(make_app(), [*arguments, *wrong.split()], catch_exceptions=False)
    assert not out.exists()


def test_an_exit_before_the_first_layer_is_named(
    tmp_path: Path, target: Path, written: tuple[Path, Path]
) -> None:
    with pytest.raises(DraftpickError, match="--exit-layer must be 1 to 2"):
        align(config_for("exit", tmp_path / "out", target, written, exit_layer=0), RECIPE, silent)


def test_a_bigram_table_predicts_a_counting_answer(
    tmp_path: Path, target: Path, written: tuple[Path, Path]
) -> None:
    acceptance = align(config_for("bigram", tmp_path / "out", target, written), RECIPE, silent)
    assert acceptance["overall"] > 0.85  # each word has one successor, but for where answers end
    assert decoded_alike(target, arms_file(tmp_path, "max_gram", tmp_path / "out/model"))


def test_a_specialist_is_judged_on_every_task(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    config = config_for("drafter", tmp_path / "out", target, written, start=sizes, tasks=("qa",))
    align(config, replace(RECIPE, epochs=1), silent)
    card = json.loads((tmp_path / "out/model/card.json").read_text())
    assert card["tasks"] == ["qa"]
    assert {"qa", "math", "overall"} == set(card["acceptance"])


def test_a_killed_run_goes_on_to_the_same_weights(
    tmp_path: Path,
    target: Path,
    written: tuple[Path, Path],
    sizes: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = replace(RECIPE, epochs=2)
    whole = config_for("drafter", tmp_path / "whole", target, written, start=sizes)
    align(whole, recipe, silent)

    killed = replace(whole, out=tmp_path / "killed")
    monkeypatch.setattr(Answers, "checkpoint_s", 0.0)
    steps = iter(range(12))

    def dies(*args: Any) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        step(*args)

    step = weights.Weights.step
    with monkeypatch.context() as patch:
        patch.setattr(weights.Weights, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            align(killed, recipe, silent)
    align(killed, recipe, silent)
    states = [
        checkpoint.kept(folder / "training.safetensors", torch.device("cpu"))["weights"]["module"]
        for folder in (tmp_path / "whole", tmp_path / "killed")
    ]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=0)


def test_another_recipe_is_refused(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    config = config_for("drafter", tmp_path / "out", target, written, start=sizes)
    align(config, replace(RECIPE, epochs=1), silent)
    with pytest.raises(DraftpickError, match="another recipe"):
        align(config, replace(RECIPE, epochs=2), silent)


def test_the_target_writes_first_where_no_outputs_are_named(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    arguments = ["align", "--out", str(tmp_path / "out"), "--target", str(target)]
    arguments += ["--queries", str(written[0]), "--start", str(sizes), "--epochs", "1"]
    arguments += ["--max-new-tokens", "6", "--vocab-size", "30", "--device", "cpu"]
    done = CliRunner().invoke(make_app(), arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "the target writes: 0 of 160 answers" in done.stderr
    assert "the target writes: 160 of 160 answers" in done.stderr
    lines = (tmp_path / "out/outputs.jsonl").read_text().splitlines()
    assert len(lines) == 160
    rows = [json.loads(line) for line in lines]
    assert all(1 <= len(row["ids"]) <= 6 for row in rows)
    # cut in the middle of a line, as a kill would: only what is missing is written again
    (tmp_path / "out/outputs.jsonl").write_text("\n".join(lines[:100]) + "\n" + lines[100][:9])
    (tmp_path / "out/training.safetensors").unlink()
    assert CliRunner().invoke(make_app(), arguments, catch_exceptions=False).exit_code == 0
    again = [json.loads(x) for x in (tmp_path / "out/outputs.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in again) == sorted(row["id"] for row in rows)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "outputs.jsonl:1: not JSON"),
        ('{"id": "q1"}', "needs `id`"),
        ('{"id": "x", "ids": [1]}', "no query has"),
    ],
)
def test_bad_outputs_are_named(
    tmp_path: Path, target: Path, written: tuple[Path, Path], line: str, says: str
) -> None:
    bad = tmp_path / "outputs.jsonl"
    bad.write_text(line + "\n")
    config = replace(config_for("bigram", tmp_path / "out", target, written), outputs=(bad,))
    with pytest.raises(DraftpickError, match=says):
        align(config, RECIPE, silent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_without_an_end_token(
    kind: str, tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    """Its drafter learns answers that do not end, those that the target writes itself as well."""
    endless = shutil.copytree(target, tmp_path / "target")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((endless / name).read_text())
        (endless / name).write_text(json.dumps({**config, "eos_token_id": None}))
    assert targets.eos_ids(endless) == ()
    start = sizes if kind == "drafter" else None
    config = config_for(kind, tmp_path / "out", endless, written, start=start, exit_layer=1)
    assert align(config, replace(RECIPE, epochs=1), silent)
    options = EngineOptions(str(endless), dtype="float32", device="cpu")
    own = write_outputs([written[0]], tmp_path / "own", options, 3, ["qa"], minutes=1e-9)
    assert not own.read_text()  # no batch begins after the time
    own = write_outputs([written[0]], tmp_path / "own", options, 3, ["qa"])
    rows = [json.loads(line) for line in own.read_text().splitlines()]
    assert {(len(row["ids"]), row["ended"]) for row in rows} == {(3, False)}
    if kind == "bigram":
        config = config_for(kind, tmp_path / "again", endless, (written[0], own), start=start)
        assert align(config, RECIPE, silent)


def test_no_examples_are_no_batches() -> None:
    """So that a run of which none is held out ends well."""
    assert batches([], 64, 0) == []
