"""Prediction alignment end to end on a target small enough to train in seconds."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from align_kit import RECIPE, command, config_for, dies_after, endless, nothing

from collect.align import card, checkpoint, weights
from collect.align.calibration import Example, batches, build
from collect.align.card import finish
from collect.align.config import KINDS
from collect.align.learners import Answers, DraftLearner
from collect.align.run import align
from collect.align.write import write_outputs
from collect.queries import read_queries
from decoders import Engine, Request
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.options import EngineOptions
from decoders.sampling.draft_vocab import DraftVocab

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps(SIZES))
    return path


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


@pytest.mark.parametrize(
    ("kind", "arm", "least"),
    [
        ("drafter", "neural", 0.8),
        ("exit", "early_exit", 0.5),
        ("bigram", "max_gram", 0.85),  # each word has one successor, but for where answers end
    ],
)
def test_what_the_target_writes_is_learnt(
    kind: str, arm: str, least: float, tmp_path: Path, target: Path, written: tuple[Path, Path],
    sizes: Path,
) -> None:  # fmt: skip
    start = sizes if kind == "drafter" else None
    config = config_for(kind, tmp_path / "out", target, written, start=start, exit_layer=1)
    acceptance = align(config, RECIPE, nothing)
    assert acceptance["overall"] > least
    card = json.loads((tmp_path / "out/model/card.json").read_text())
    assert card["acceptance"]["overall"] == pytest.approx(acceptance["overall"], abs=1e-4)
    assert card["held_out_queries"] > 0
    assert card["queries"] + card["held_out_queries"] == 160
    assert decoded_alike(target, arms_file(tmp_path, arm, tmp_path / "out/model"))


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
    given = ["--out", out, "--queries", written[0], "--target", target, *wrong.split()]
    with pytest.raises(DraftpickError, match=says):
        command(*given)
    assert not out.exists()


def test_a_specialist_is_judged_on_every_task(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    config = config_for("drafter", tmp_path / "out", target, written, start=sizes, tasks=("qa",))
    align(config, replace(RECIPE, epochs=1), nothing)
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
    align(whole, recipe, nothing)

    killed = replace(whole, out=tmp_path / "killed")
    monkeypatch.setattr(Answers, "checkpoint_s", 0.0)
    dies_after(monkeypatch, weights.Weights, 12, lambda: align(killed, recipe, nothing))
    align(killed, recipe, nothing)
    states = [
        checkpoint.kept(folder / "training.pt", torch.device("cpu"))["weights"]["module"]
        for folder in (tmp_path / "whole", tmp_path / "killed")
    ]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=0)


def test_what_was_trained_on_something_else_is_not_gone_on_from(
    tmp_path: Path, target: Path, folder: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    """Its weights would be those of other texts, and its card would name the new ones."""
    recipe = replace(RECIPE, epochs=1)
    config = config_for("drafter", tmp_path / "out", target, written, start=sizes)
    align(config, recipe, nothing)
    align(config, recipe, nothing)
    turned = tmp_path / "turned.json"
    turned.write_text(json.dumps({**SIZES, "rope_theta": 5000.0}))
    others = (
        replace(config, tasks=("qa",)),
        replace(config, kind="exit", start=None, exit_layer=1),
        replace(config, start=turned),
        replace(config, vocab_size=20),
    )
    for other in others:
        with pytest.raises(DraftpickError, match=r"on other texts, .*; name another --out"):
            align(other, recipe, nothing)
    for other in replace(config, target=str(folder)), replace(config, chat_template="{{ 'w1' }}"):
        with pytest.raises(DraftpickError, match=r"other weights or another chat template"):
            align(other, recipe, nothing)
    recurrent = replace(config, kind="recurrent", start=None, out=tmp_path / "recurrent", width=32)
    align(recurrent, recipe, nothing)
    align(recurrent, recipe, nothing)
    for other in replace(recurrent, tasks=("qa",)), replace(recurrent, kind="eagle3"):
        with pytest.raises(DraftpickError, match="on other texts"):
            align(other, recipe, nothing)


def test_the_target_writes_first_where_no_outputs_are_named(
    tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    given = ["--out", tmp_path / "out", "--target", target, "--queries", written[0]]
    given += ["--start", sizes, "--epochs", 1, "--max-new-tokens", 6, "--vocab-size", 30]
    done = command(*given)
    assert done.exit_code == 0
    assert "the target writes: 0 of 160 answers" in done.stderr
    assert "the target writes: 160 of 160 answers" in done.stderr
    lines = (tmp_path / "out/outputs.jsonl").read_text().splitlines()
    assert len(lines) == 160
    rows = [json.loads(line) for line in lines]
    assert all(1 <= len(row["ids"]) <= 6 for row in rows)
    # cut in the middle of a line, as a kill would: only what is missing is written again
    (tmp_path / "out/outputs.jsonl").write_text("\n".join(lines[:100]) + "\n" + lines[100][:9])
    (tmp_path / "out/training.pt").unlink()
    assert command(*given).exit_code == 0
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
        align(config, RECIPE, nothing)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_without_an_end_token(
    kind: str, tmp_path: Path, target: Path, written: tuple[Path, Path], sizes: Path
) -> None:
    """Its drafter learns answers that do not end."""
    start = sizes if kind == "drafter" else None
    without = endless(target, tmp_path)
    config = config_for(kind, tmp_path / "out", without, written, start=start, exit_layer=1)
    assert align(config, replace(RECIPE, epochs=1), nothing)


def test_answers_of_a_target_without_an_end_token(
    tmp_path: Path, target: Path, written: tuple[Path, Path]
) -> None:
    without = endless(target, tmp_path)
    assert targets.eos_ids(without) == ()
    options = EngineOptions(str(without), dtype="float32", device="cpu")
    own = write_outputs([written[0]], tmp_path / "own", options, 3, ["qa"], minutes=1e-9)
    assert not own.read_text()  # no batch begins after the time
    own = write_outputs([written[0]], tmp_path / "own", options, 3, ["qa"])
    rows = [json.loads(line) for line in own.read_text().splitlines()]
    assert {(len(row["ids"]), row["ended"]) for row in rows} == {(3, False)}
    assert align(
        config_for("bigram", tmp_path / "out", without, (written[0], own)), RECIPE, nothing
    )


def test_what_is_held_out_shares_neither_text_nor_group_with_what_is_trained_on(
    tmp_path: Path,
) -> None:
    """And what has no answer is neither."""
    of_text = [{"id": f"t{i}", "turns": ["same"]} for i in range(100)]
    of_group = [{"id": f"g{i}", "turns": [f"{i}"], "group": "one"} for i in range(100)]
    alone = [{"id": f"q{i}", "turns": [f"own {i}"]} for i in range(100)]
    rows = [{"task": "qa", **row} for row in of_text + of_group + alone]
    queries, outputs = tmp_path / "queries.jsonl", tmp_path / "outputs.jsonl"
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"id": row["id"], "ids": [1]} for row in rows] + [{"id": "q0", "output": ""}]
    outputs.write_text("".join(json.dumps(row) + "\n" for row in answers))
    examples = build(
        [outputs], read_queries(queries), lambda query: [5], lambda text: [], None,
        tasks=None, max_prompt=9, max_answer=9,
    )  # fmt: skip
    apart = [example.held_out for example in examples]
    assert len(apart) == 300 and 0 < sum(apart[200:]) < 10
    assert len(set(apart[:100])) == len(set(apart[100:200])) == 1


def test_answers_without_a_token_of_the_vocabulary_teach_nothing(vocab: DraftVocab) -> None:
    learner = DraftLearner(SIZES, vocab)
    loss = learner.loss(torch.tensor([[5, 42]]), torch.tensor([[42, -100]]))
    loss.backward()
    assert loss.item() == 0
    assert all(not w.grad.any() for w in learner.module.parameters() if w.grad is not None)


def test_a_run_goes_on_where_it_was_though_epochs_differ_in_batches(vocab: DraftVocab) -> None:
    lengths = np.random.default_rng(1).integers(20, 64, 100)
    examples = [Example("q", "qa", np.full(n, 5, np.int32), 1) for n in lengths]
    task = Answers(DraftLearner(SIZES, vocab), examples, replace(RECIPE, batch_tokens=300))
    steps = [task.steps(epoch) for epoch in range(1, 4)]
    assert len(set(np.diff([0, *steps]))) > 1
    whole = list(islice(task.batches(0), steps[2]))
    for skipped in (steps[0] - 1, *steps[:2], steps[1] + 1):
        np.testing.assert_array_equal(next(task.batches(skipped)).ids, whole[skipped].ids)


def test_a_drafter_s_folder_is_whole_while_the_old_one_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(deleting: Path, ignore_errors: bool) -> None:
        if deleting.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(card, "render", lambda *given: "")
    finish(tmp_path / "model", "it", {"is": "one"}, nothing)
    monkeypatch.setattr(card.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path / "model", "it", {"is": "two"}, nothing)
    assert json.loads((tmp_path / "model/card.json").read_text())["is"] == "two"


def test_no_examples_are_no_batches() -> None:
    """So that a run of which none is held out ends well."""
    assert batches([], 64, 0) == []
