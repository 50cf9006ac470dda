"""Arms that draft from earlier answers: a collection's rows are those of a server that answers the
queries one after the other, however they are batched and wherever a run was stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import save_tiny

from collect import SweepOptions, sweep
from collect.queries import Query
from collect.replay.batch import Batch
from collect.store.tables import read_table
from collect.sweeps.executor import Executor
from decoders import Engine
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.earlier.answers import EarlierAnswers
from decoders.records import Request
from decoders.testing.tokenizers import Letters
from decoders.testing.toys import ToyBackend

V, MOST = 16, 24
SIZES = {"vocab_size": V, "max_position_embeddings": 128}


TEXTS = ["abcab", "fedcba", "abcab", "kab", "fedcba", "bcab", "ffff", "kab", "abcabd"]


def queries() -> list[Query]:
    return [Query(f"q{n}", "qa", (text,)) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("small")
    save_tiny(folder, "llama", 5, SIZES)
    bodies: dict[str, dict[str, Any]] = {
        "autoregressive": {"kind": "autoregressive"},
        "copy": {"kind": "max_gram", "length": {"k": 4}},
        "suffix": {"kind": "suffix", "length": {"k": 4}},
        "hybrid": {
            "kind": "hybrid", "suffix": True, "length": {"k": 4},
            "model": {"kind": "neural", "drafter": str(folder)},
        },
        "tree": {"kind": "suffix", "width": 2, "nodes": 6, "length": {"k": 4}},
        "inside": {
            "kind": "horizontal",
            "parts": [
                {"kind": "suffix", "length": {"k": 3}},
                {"kind": "neural", "drafter": str(folder), "length": {"k": 1}},
            ],
        },
    }  # fmt: skip
    arms = {name: recipe(name=name, **body) for name, body in bodies.items()}
    shared = torch.Generator().manual_seed(0)
    target = ToyBackend(4 * torch.randn(V, V, V, generator=shared))
    return Engine(target, arms, tokenizer=Letters())


def batch_of(engine: Engine) -> Batch:
    return Batch(engine, Costs((0.01,) * 16, dict.fromkeys(engine.arms, 0.001)))


def collected(
    engine: Engine, out: Path, stop: int | None = None, **named: Any
) -> list[dict[str, Any]]:
    """The rows, as by a run that is stopped before this many batches and done again."""

    class Stopped(Batch):
        left = 1000 if stop is None else stop

        def target(self, prompts: Any, *rest: Any, **more: Any) -> Any:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().target(prompts, *rest, **more)

    own = SweepOptions(max_new_tokens=MOST, similarity=False, **named)
    if stop is not None:
        with pytest.raises(KeyboardInterrupt):
            sweep(engine, Stopped(engine, batch_of(engine).cost_table), queries(), out, own)
    assert not sweep(engine, batch_of(engine), queries(), out, own).errors
    kept = (
        "query_id",
        "arm",
        "temperature",
        "rounds",
        "drafted",
        "accepted",
        "calls",
        "target_ids",
    )
    return list(read_table(out, "outcomes", kept).to_pylist())


def by_query(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["query_id"], row["arm"], row["temperature"]))


def test_rows_are_those_of_a_server(engine: Engine, tmp_path: Path) -> None:
    rows = collected(engine, tmp_path, batch_size=4)
    gained = 0.0
    for arm in engine.arm_names:
        engine.remember(EarlierAnswers())
        for n, text in enumerate(TEXTS):
            live = engine.decode(arm, Letters().encode(text), Request(MOST))
            (row,) = (r for r in rows if (r["query_id"], r["arm"]) == (f"q{n}", arm))
            assert (row["rounds"], row["accepted"]) == (live.rounds, live.accepted)
            assert (row["drafted"], row["target_ids"]) == (live.drafted, live.ids)
            if arm == "suffix":
                assert row["calls"] is None  # no model takes steps
                apart = engine.decode(arm, live.prompt_ids, Request(MOST, user=None))
                gained += live.accepted - apart.accepted
        engine.remember(None)
    assert gained > 20


@pytest.mark.parametrize("how", [{"batch_size": 1}, {"batch_size": 2, "stop": 3}])
def test_neither_batches_nor_a_stop_change_them(
    engine: Engine, tmp_path: Path, how: dict[str, int]
) -> None:
    options = {"temperatures": (0.0, 1.0), "arms": ("autoregressive", "copy", "suffix", "hybrid")}
    whole = collected(engine, tmp_path / "whole", batch_size=100, **options)
    assert by_query(collected(engine, tmp_path / "other", **how, **options)) == by_query(whole)
    warm = [row for row in whole if row["temperature"] and row["arm"] == "suffix"]
    assert sum(row["accepted"] for row in warm) > 0


def test_what_would_break_the_order_is_refused(engine: Engine, tmp_path: Path) -> None:
    class Elsewhere:
        def costs(self) -> Costs:
            raise AssertionError

        def collect(self, *_: Any) -> Any:
            raise AssertionError

    assert isinstance(Elsewhere(), Executor)
    with pytest.raises(DraftpickError, match=r"'suffix' drafts from earlier .* leave --engine ray"):
        sweep(engine, Elsewhere(), queries(), tmp_path, SweepOptions())
    timed = SweepOptions(measure=True)
    with pytest.raises(DraftpickError, match="--measure times them in another"):
        sweep(engine, batch_of(engine), queries(), tmp_path, timed)
    assert not list(tmp_path.iterdir())
