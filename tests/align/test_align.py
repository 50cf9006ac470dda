"""Prediction alignment end to end on a target small enough to train in seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from collect.align import trainer
from collect.align.run import AlignConfig, align
from collect.align.trainer import Recipe
from decoders import Engine, Request
from decoders.errors import DraftpickError
from router.cli import app

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
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
    return AlignConfig(kind, out, (queries,), (outputs,), str(target), "cpu", vocab_size=38, **more)


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
    monkeypatch.setattr(trainer, "SAVE_EVERY_S", 0.0)
    steps = iter(range(12))

    def dies(*args: Any, **kwargs: Any) -> float:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    step = trainer._step
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_step", dies)
        with pytest.raises(KeyboardInterrupt):
            align(killed, recipe, silent)
    align(killed, recipe, silent)
    states = [
        torch.load(folder / "training.pt", weights_only=True)["module"]
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
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    lines = (tmp_path / "out/outputs.jsonl").read_text().splitlines()
    assert len(lines) == 160
    rows = [json.loads(line) for line in lines]
    assert all(1 <= len(row["ids"]) <= 6 for row in rows)
    # cut in the middle of a line, as a kill would: only what is missing is written again
    (tmp_path / "out/outputs.jsonl").write_text("\n".join(lines[:100]) + "\n" + lines[100][:9])
    (tmp_path / "out/training.pt").unlink()
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
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
