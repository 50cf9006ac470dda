"""`train`, `headroom` and summaries open a collection once: every file of it is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from collect_fakes import FakeEngine, FakeRecipe, make_queries, sweep
from commands import Draftpick

from collect.sweeps.batch import SweepOptions
from decoders.common.hashing import HashingEmbedder


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, two temperatures and loads, and a space of its own."""
    folder = tmp_path_factory.mktemp("collected") / "rewards"
    options = SweepOptions(max_new_tokens=8, batch_size=12, temperatures=(0.0, 1.0), at_once=(1, 8))
    engine = FakeEngine()
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    sweep(engine, make_queries(6), folder, options, embedder=HashingEmbedder())
    assert len(list(folder.rglob("*.parquet"))) == 7
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, rewards: Path) -> Iterator[Counter[str]]:
    """How often each file of the collection was read."""
    found: Counter[str] = Counter()
    read_table, read_text = pq.read_table, Path.read_text

    def table(path: Any, *given: Any, **named: Any) -> Any:
        found[Path(path).relative_to(rewards).as_posix()] += 1
        return read_table(path, *given, **named)

    def text(path: Path, *given: Any, **named: Any) -> str:
        if rewards in path.parents:
            found[path.relative_to(rewards).as_posix()] += 1
        return read_text(path, *given, **named)

    monkeypatch.setattr(pq, "read_table", table)
    monkeypatch.setattr(Path, "read_text", text)
    yield found


TRAIN = ("train", "--policy", "best-fixed", "--no-guard")


@pytest.mark.parametrize(
    "asked",
    [
        (*TRAIN, "--reward", "paper", "--repetitive", "without"),
        (*TRAIN, "--reward", "paper", "--judge-by", "modelled"),
        ("train", "--max-loss", "0.5", "--confidence", "0.5"),
        ("headroom",),
        ("collect", "--summary"),
    ],
    ids=" ".join,
)
def test_every_file_is_read_once(
    asked: tuple[str, ...], rewards: Path, read: Counter[str], tmp_path: Path, draftpick: Draftpick
) -> None:
    if asked[0] == "train":
        store = f"sqlite:///{tmp_path}/mlflow.db"
        asked += ("--out", f"{tmp_path}/policy", "--tracking-uri", store, "--rewards")
    draftpick(*asked, rewards)
    assert max(read.values()) == 1 and len(read) in (7, 8)
