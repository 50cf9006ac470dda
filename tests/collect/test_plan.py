"""`draftpick collect`: which options go together, without a command line, models or files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoders.common.errors import DraftpickError
from router.commands.collect.plan import CollectPlan, SummaryPlan, plan

OUT = Path("no-such-folder")


def test_a_sweep() -> None:
    found = plan(
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
    assert (found.on_ray, found.ray_address) == (True, "auto")
    assert (found.options.target, found.options.device) == ("models/mine", "cpu")
    assert not OUT.exists()


def test_the_defaults() -> None:
    found = plan(out=OUT)
    assert isinstance(found, CollectPlan) and not found.on_ray
    assert (found.files, found.limit, found.embedder, found.how.arms) == ((), None, None, ())


def test_a_summary() -> None:
    assert plan(summary=OUT, reward="paper", alpha=0.1) == SummaryPlan(OUT, "paper", 0.1)


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
        plan(**options)
