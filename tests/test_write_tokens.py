"""The script that writes token files: what it asks, and that it goes on where it was stopped."""

import json
import zlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import write_tokens
from token_files import load

from collect.align.tokens import Tokens
from decoders.engine import Engine
from decoders.models import targets
from decoders.testing.tokenizers import save_llama, word_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ["[user]", "[assistant]", "</s>", *"abcdefghijklm"]
END = 2
ASKED = 19  # and one that is too long

Write = Callable[..., None]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of random weights with a chat template."""
    from tokenizers import pre_tokenizers

    words = word_tokenizer(WORDS, "a", TEMPLATE, eos_token="</s>")
    words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.add_special_tokens({"additional_special_tokens": WORDS[:2]})
    folder = tmp_path_factory.mktemp("target")
    return save_llama(folder, words, intermediate_size=48, initializer_range=0.2)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two tasks, one of them too long."""
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    rows = [
        {"id": f"q{i}", "task": ("qa", "math")[i % 2], "turns": ["abc" * (i % 5 + 1), "and?"]}
        for i in range(ASKED + 1)
    ]
    rows[7]["turns"] = ["a" * 200]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def write(target: Path, queries: Path, script: Write) -> Write:
    def run(out: Path, **options: Any) -> None:
        given: dict[str, Any] = {"target": target, "queries": queries, "out": out, "device": "cpu"}
        given |= {"rows": 16, "cool": 2, "warm": 1, "own": 1, "max_new_tokens": 20}
        given |= {"max_asking": 40, "max_prompt": 100, "shard_tokens": 750, "dtype": "float32"}
        named = (
            (f"--{name.replace('_', '-')}", value) for name, value in (given | options).items()
        )
        script("write_tokens", *chain.from_iterable(named))

    return run


def read(out: Path, split: str) -> tuple[Tokens, list[str]]:
    shards = sorted(out.glob(f"{split}-*.npz"))
    names = [n for path in shards for n in json.loads(path.with_suffix(".json").read_text())]
    return load(shards), names


def test_all_that_is_wanted_is_written(
    write: Write, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert f"{ASKED} prompts, 1 longer than 100 tokens left out" in capsys.readouterr().out
    assert len(list(tmp_path.glob("train-*.npz"))) > 1
    engine = Engine.load(str(target), {}, dtype="float32", device="cpu")
    seen: list[str] = []
    for split in ("train", "held-out"):
        made, names = read(tmp_path, split)
        assert len(made) == len(names)
        seen += names
        for i, name in enumerate(names):
            held = zlib.crc32(name.split()[0].encode()) % 100 < 3
            assert held == (split == "held-out")
            ids, begins = made.text(i).tolist(), int(made.answer[i])
            prompt, answer = ids[:begins], ids[begins:]
            assert 1 <= len(answer) <= 20 and END not in answer[:-1]
            assert len(answer) == 20 or answer[-1] == END
            assert prompt[0] == 0 and prompt[-2:] == [END, 1] and prompt.count(END) == 1
            if made.names()[i] != "own":
                number = int(name.split()[0][1:])
                assert made.names()[i] == ("qa", "math")[number % 2]
                text = engine.tokenizer.decode(prompt[1:-2]).replace(" ", "")
                assert text == "abc" * (number % 5 + 1)
            if made.temperature[i] == 0:
                expected = target_answer(engine, prompt)
                assert answer == expected
    assert len(seen) == len(set(seen))
    assert sum(not name.startswith("own") for name in seen) == ASKED * 4
    assert sum(name.startswith("own") for name in seen) > 5


def target_answer(engine: Engine, prompt: list[int]) -> list[int]:
    from decoders.backends.native import LlamaBackend

    assert isinstance(engine.target, LlamaBackend)
    logits, answer = engine.target.prefill(prompt).logits, list[int]()
    for _ in range(20):
        answer.append(int(logits.argmax()))
        if answer[-1] == END:
            break
        logits = engine.target.extend(torch.tensor(answer[-1:]))[0]
    return answer


def test_a_stopped_run_goes_on(write: Write, tmp_path: Path) -> None:
    write(tmp_path / "whole")
    write(tmp_path / "cut", tokens=450)
    first = read(tmp_path / "cut", "train")[1]
    (tmp_path / "cut/train-99999.json").write_text('["q0 0 0"]')  # of a shard never written
    write(tmp_path / "cut")
    whole, cut = read(tmp_path / "whole", "train"), read(tmp_path / "cut", "train")
    assert 0 < len(first) < len(cut[1]) and cut[1][: len(first)] == first
    assert sorted(whole[1]) == sorted(cut[1])
    texts = [
        {name: tokens.text(i).tolist() for i, name in enumerate(names)}
        for tokens, names in (whole, cut)
    ]
    assert texts[0] == texts[1]  # what a sequence draws is its own, not its run's


def test_a_run_cut_short_has_as_much_of_each_task(write: Write, tmp_path: Path) -> None:
    write(tmp_path, tokens=600, cool=1, warm=0, own=0, held_out_percent=0)
    made = read(tmp_path, "train")[0]
    counts = [int((made.names() == task).sum()) for task in ("qa", "math")]
    assert sum(counts) < ASKED * 2 and abs(counts[0] - counts[1]) <= 6


@pytest.mark.slow
def test_sampling_begins_anew_where_there_is_time(write: Write, tmp_path: Path) -> None:
    write(tmp_path, tokens=6_000, greedy=1, cool=1, warm=0, own=0, held_out_percent=0)
    made, names = read(tmp_path, "train")
    assert len(names) == len(set(names)) > ASKED * 2
    assert np.sum(made.temperature == 0) == ASKED
    assert {"q0 0.7 0", "q0 0.7 1"} <= set(names)


def test_everything_may_be_held_out(write: Write, tmp_path: Path) -> None:
    write(tmp_path, cool=0, warm=0, own=0, held_out_percent=100, tokens=10**9)
    assert len(read(tmp_path, "held-out")[1]) == ASKED
    assert not list(tmp_path.glob("train-*"))


def test_a_template_without_an_end_is_told(target: Path) -> None:
    tokenizer = targets.load_tokenizer(target)
    with pytest.raises(SystemExit, match="--own 0"):
        write_tokens.Template.of(tokenizer, (15,))
