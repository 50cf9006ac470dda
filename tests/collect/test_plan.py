"""`draftpick collect`: which options go together, without a command line, models or files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoders.common.errors import DraftpickError
from router.commands.collect.plan import CollectOptions, CollectPlan, SummaryPlan, plan
from router.commands.with_records import made

OUT = Path("no-such-folder")


def planned(**options: Any) -> CollectPlan | SummaryPlan:
    return plan(made(CollectOptions, options))


def test_a_sweep() -> None:
    found = planned(
        queries=[Path("a.jsonl")],
        more=[Path("b.jsonl")],
        out=OUT,
        arms="small, ngram",
        temperatures="0,1",
        at_once="1,8",
        engine="ray",
        ray_address="auto",
        target="models/mine",
        device="cpu",
    )
    assert isinstance(found, CollectPlan)
    assert found.files == (Path("a.jsonl"), Path("b.jsonl")) and found.out == OUT
    assert found.how.arms == ("small", "ngram") and found.how.at_once == (1, 8)
    assert found.how.temperatures == (0.0, 1.0) and found.how.max_new_tokens == 64
    assert (found.asked.engine, found.asked.ray_address) == ("ray", "auto")
    assert (found.asked.options.target, found.asked.options.device) == ("models/mine", "cpu")
    assert not OUT.exists()


def test_the_defaults() -> None:
    found = planned(out=OUT)
    assert isinstance(found, CollectPlan) and found.asked.engine == "local"
    assert (found.files, found.how.arms) == ((), ())
    assert (found.asked.limit, found.asked.embedder) == (None, None)


def test_a_summary() -> None:
    assert planned(summary=OUT, reward="paper", alpha=0.1) == SummaryPlan(OUT, "paper", 0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "say where to store the outcomes, for instance --out rewards"),
        ({"summary": OUT, "out": OUT}, "--summary only reads a collection; leave out --out"),
        ({"summary": OUT, "queries": [OUT]}, "--summary only reads a collection"),
        ({"out": OUT, "engine": "dask"}, "unknown engine 'dask'"),
        ({"out": OUT, "ray_address": "auto"}, "add --engine ray"),
        ({"out": OUT, "temperatures": "1"}, "0 must be among the temperatures"),
        ({"out": OUT, "temperatures": "hot"}, "temperatures are numbers"),
        ({"out": OUT, "at_once": "8"}, "1 must be the least"),
        ({"out": OUT, "batch_size": 0}, "the batch size must be at least 1"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        planned(**options)
