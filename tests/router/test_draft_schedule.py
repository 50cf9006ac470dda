"""Draft lengths by load, from a collection to vLLM's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from collect_fakes import FakeEngine, make_queries, sweep

from collect.sweeps.batch import SweepOptions
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from policies.records import ANY, RewardTable
from router.cli import main
from router.engines.export.schedules import LOAD, draft_schedule

LENGTHS = {"plain": 0, "two": 2, "eight": 8}


def table(loads: tuple[int, ...], rewards: Any, noise: float = 0.05) -> RewardTable:
    """rewards: load -> of plain, two, eight."""
    chance = np.random.default_rng(0)
    rows = [(query, load) for query in range(80) for load in loads]
    values = np.array([rewards(load) for _, load in rows])
    return RewardTable(
        query_ids=[f"{query}x{load}" for query, load in rows],
        tasks=["t"] * len(rows),
        embeddings=np.zeros((len(rows), 0), dtype=np.float32),
        arms=list(LENGTHS),
        rewards=values + chance.normal(0, noise, values.shape),
        reward_name="modelled@5",
        embedder=ANY,
        arms_fingerprint="",
        groups=[str(query) for query, _ in rows],
        features=np.log1p(np.array([[load - 1] for _, load in rows])),
        feature_names=(LOAD,),
    )


def test_lengths_shrink_where_load_makes_drafts_dear() -> None:
    best = {1: (1.0, 1.2, 1.6), 8: (1.0, 1.3, 0.9), 32: (1.0, 0.8, 0.5)}
    found = draft_schedule(table((1, 8, 32), best.__getitem__), LENGTHS)
    assert [tokens for _, _, tokens in found.ranges] == [8, 2, 0]
    assert found.ranges[0][0] == 1 and found.ranges[-1][1] == 32
    assert all(a[1] + 1 == b[0] for a, b in zip(found.ranges, found.ranges[1:], strict=False))
    (_, first, _), (_, second, _), _ = found.ranges
    assert 1 <= first < 8 <= second < 32 and found.longest == 8
    assert "95% confidence" in found.verdict


def test_where_load_says_nothing_the_best_fixed_length_is_kept() -> None:
    found = draft_schedule(table((1, 8), lambda load: (1.0, 1.2, 1.1), 0.3), LENGTHS)
    assert found.ranges == ((1, 8, 2),) and found.arm == "two"
    assert "best fixed arm (two)" in found.verdict


def test_one_load_is_not_enough() -> None:
    with pytest.raises(DraftpickError, match="--at-once"):
        draft_schedule(table((1,), lambda load: (1.0, 1.2, 1.1)), LENGTHS)


def collected(out: Path, small: dict[str, Any]) -> Path:
    """Of plain decoding and `small`, which pays alone, and not beside seven others."""
    engine = FakeEngine()
    arms: dict[str, Any] = {
        "autoregressive": {"kind": "autoregressive"},
        "small": small,
        "ngram": {"kind": "recurrent", "drafter": "recurrent-general"},
    }
    engine.arms = {name: recipe(name=name, **body) for name, body in arms.items()}  # type: ignore[misc]
    options = SweepOptions(max_new_tokens=8, batch_size=4, at_once=(1, 8))
    sweep(engine, make_queries(12), out, options)
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copies = {"kind": "max_gram", "shortest": 8, "length": {"k": 4}}
    return collected(tmp_path / "rewards", copies)


def schedule_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["export", *words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["schedules"]
    assert told["arms"] == ["autoregressive", "small"]
    (low, switch, most), (after, high, none) = told["ranges"]
    assert (low, most, high, none) == (1, 4, 8, 0) and after == switch + 1
    return told


def test_a_collection_becomes_a_schedule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = schedule_of(["vllm", "--rewards", str(folder)], capsys)
    settings = json.loads(told["options"][1])
    assert settings["method"] == "ngram" and settings["num_speculative_tokens"] == 4
    assert settings["num_speculative_tokens_per_batch_size"] == told["ranges"]
    assert main(["export", "vllm", "--rewards", str(folder), "--model", "M"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("vllm serve M --speculative-config")
    assert "at least" in lines[1] and all(line.startswith("#") for line in lines[:-1])


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_a_schedule_in_a_file(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {"kind": "eagle3", "drafter": "org/head", "length": {"k": 4}}
    folder = collected(tmp_path / "rewards", head)
    told = schedule_of([engine, "--rewards", str(folder)], capsys)
    switch, text = told["ranges"][0][1], told["file"]["text"]
    assert told["options"][-1] == told["file"]["name"] and text in told["command"]
    if engine == "sglang":
        after = {"candidate_steps": [0]}
        assert json.loads(text) == {"1": {"candidate_steps": [4]}, str(switch + 1): after}
        assert "--speculative-adaptive" in told["options"]
    else:
        assert yaml.safe_load(text)["speculative_config"] == {
            "decoding_type": "Eagle3",
            "speculative_model": "org/head",
            "max_draft_len": 4,
            "draft_len_schedule": {switch: 4},
        }
        assert told["differs"] == [
            f"TensorRT-LLM drafts nothing while more than {switch} requests run"
        ]


def test_lengths_by_load_are_refused_where_an_engine_has_none(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "sglang", "--rewards", str(folder)]) == 2
    assert "EAGLE heads alone" in capsys.readouterr().err
    assert main(["export", "llama.cpp", "--rewards", str(folder)]) == 2
    assert "one draft length for all loads" in capsys.readouterr().err
    sweep(FakeEngine(), make_queries(), tmp_path / "other", SweepOptions(at_once=(1, 8)))
    assert main(["export", "vllm", "--rewards", str(tmp_path / "none")]) == 2
