"""The script that trains recurrent drafters, and the one that packs its texts, on a toy."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from token_files import load, save

from decoders.common.errors import DraftpickError
from decoders.testing.tokenizers import save_llama, word_tokenizer

ROOT = Path(__file__).resolve().parent.parent
WORDS = [f"w{i}" for i in range(40)]
ABSENT = ("datasets", "mlflow", "rouge_score", "typer", "pyarrow")


Script = Callable[..., None]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama over forty words."""
    words = word_tokenizer(
        ["<unk>", "<s>", "</s>", *WORDS], "<unk>",
        unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    )  # fmt: skip
    return save_llama(
        tmp_path_factory.mktemp("target"), words,
        max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip


@pytest.fixture
def shard(tmp_path: Path, target: Path, script: Script) -> Path:
    """Counting answers of five tasks, packed by the script."""
    queries, outputs = [], []
    tasks = ("math", "mt_bench", "translation", "rag", "summarization")
    for i in range(200):
        first, name = (7 * i) % 20, f"q{i}"
        turns = [f"{WORDS[first]} {WORDS[i % 7]} {WORDS[i % 31]}"]
        queries.append({"id": name, "task": tasks[i % 5], "turns": turns})
        answer = " ".join(WORDS[first + 1 : first + 9])
        temperature = 0.7 * (i % 2)
        outputs.append({"id": name, "output": answer, "ended": True, "temperature": temperature})
    for name, rows in (("queries", queries), ("outputs", outputs)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = tmp_path / "shard.npz"
    asked = ("--queries", tmp_path / "queries", "--outputs", tmp_path / "outputs")
    script("pack_tokens", *asked, "--target", target, "--out", made)
    return made


def options(shard: Path, target: Path, out: Path) -> list[object]:
    given: list[object] = ["--tokens", shard, "--target", target, "--device", "cpu", "--out", out]
    return [*given, "--width", 16, "--vocab-size", 30, "--batch-tokens", 256, "--held-out", 5]


def test_texts_are_packed_with_their_prompts(shard: Path) -> None:
    tokens = load([shard])
    assert len(tokens) == 200
    # words 14, 2, 2, then the answer counts on from word 14; ids begin after three special ones
    assert tokens.text(2).tolist() == [17, 5, 5, *range(18, 26), 2]
    assert int(tokens.answer[2]) == 3 and str(tokens.names()[2]) == "translation"
    assert [round(float(t), 3) for t in tokens.temperature[:2]] == [0.0, 0.7]


def test_a_generalist_and_specialists(
    tmp_path: Path, shard: Path, target: Path, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = [*options(shard, target, out), "--minutes", 0.01, "--specialists", 0.01]
    script("train_recurrent", *arguments)
    told = capsys.readouterr().out
    stages = ["general", "math", "chat", "translation", "documents", "general-on"]
    for stage in stages:
        assert f"| {stage} |" in told
        assert (out / stage / "model/recurrent.safetensors").is_file()
        assert (out / stage / "curve.jsonl").is_file()
        # done: there is nothing to go on with
        assert not (out / stage / "training.pt").exists()
    results = json.loads((out / "results.json").read_text())
    assert list(results) == stages
    cards = {stage: json.loads((out / stage / "model/card.json").read_text()) for stage in stages}
    assert cards["documents"]["tasks"] == ["rag", "summarization"]
    assert cards["documents"]["start"] == "general" and cards["general"]["start"] is None
    assert cards["math"]["recipe"]["matrix_lr"] < cards["general"]["recipe"]["matrix_lr"]
    assert "benchmarks/train_recurrent.py" in cards["math"]["command"]
    assert set(results["chat"]["figures"]["overall"]) == {
        *("first", "two", "three", "overlap", "overlap_drawn")
    }
    # called again: nothing is trained anew
    before = (out / "math/model/card.json").stat().st_mtime_ns
    script("train_recurrent", *arguments)
    assert (out / "math/model/card.json").stat().st_mtime_ns == before
    assert capsys.readouterr().out == told


def test_a_plan_says_what_differs(
    tmp_path: Path, shard: Path, target: Path, script: Script
) -> None:
    plan: list[dict[str, Any]] = [
        {"name": "narrow", "width": 8, "minutes": None, "epochs": 1},
        {"name": "on", "start": "narrow", "tasks": ["rag"], "fade": 0.5, "minutes": 0.01},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    out = tmp_path / "out"
    arguments = [*options(shard, target, out), "--plan", tmp_path / "plan.json", "--minutes", 9]
    arguments += ["--int8"]
    script("train_recurrent", *arguments)
    card = json.loads((out / "on/model/card.json").read_text())
    assert card["start"] == "narrow" and card["recipe"]["fade"] == 0.5
    assert json.loads((out / "on/model/config.json").read_text())["width"] == 8
    for stage in ("narrow", "on"):  # the second went on from the first, as it was saved
        held = load_file(out / stage / "model/recurrent.safetensors")
        assert held["down.0"].dtype == torch.int8 and "down.0.step" in held
        assert "kept in int8" in (out / stage / "model/README.md").read_text()

    (tmp_path / "plan.json").write_text(json.dumps([{"name": "x", "widht": 8}]))
    with pytest.raises(DraftpickError, match="not widht"):
        script("train_recurrent", *arguments)


def test_a_wrong_task_is_told_before_anything_is_trained(
    tmp_path: Path, shard: Path, target: Path, script: Script
) -> None:
    save(tmp_path / "one.npz", load([shard]).pick(load([shard]).names() == "math"))
    arguments = options(tmp_path / "one.npz", target, tmp_path / "out")
    with pytest.raises(DraftpickError, match="no text is of mt_bench; use math"):
        script("train_recurrent", *arguments, "--minutes", 1, "--specialists", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_script_needs_little(tmp_path: Path, shard: Path, target: Path) -> None:
    """It runs where most of what draftpick is installed with is missing."""
    for name in ABSENT:
        (tmp_path / "absent" / name).mkdir(parents=True)
        (tmp_path / "absent" / name / "__init__.py").write_text("raise ImportError('absent')")
    arguments = [*options(shard, target, tmp_path / "out"), "--epochs", 1]
    done = subprocess.run(
        [sys.executable, "benchmarks/train_recurrent.py", *map(str, arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path / 'absent'}:{ROOT}", "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/model/recurrent.safetensors").is_file()
