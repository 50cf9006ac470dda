"""`draftpick collect`: which options go together, without a command line, models or files."""

from pathlib import Path
from typing import Any

import pytest

from collect.sweeps.batch import SweepOptions
from decoders.common.errors import DraftpickError
from router.commands.collect.plan import CollectOptions, plan
from router.commands.with_records import made

OUT = Path("no-such-folder")


def planned(**options: Any) -> tuple[CollectOptions, SweepOptions | None]:
    asked = made(CollectOptions, options)
    return asked, plan(asked)


def test_a_sweep() -> None:
    asked, how = planned(
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
    assert asked.files == [Path("a.jsonl"), Path("b.jsonl")] and asked.out == OUT
    assert how is not None and how.arms == ("small", "ngram") and how.at_once == (1, 8)
    assert how.temperatures == (0.0, 1.0) and how.max_new_tokens == 64
    assert (asked.engine, asked.ray_address) == ("ray", "auto")
    assert (asked.options.target, asked.options.device) == ("models/mine", "cpu")
    assert not OUT.exists()


def test_the_defaults() -> None:
    asked, how = planned(out=OUT)
    assert how is not None and asked.engine == "local"
    assert (asked.files, how.arms) == ([], ())
    assert (asked.limit, asked.embedder) == (None, None)


def test_a_summary() -> None:
    asked, how = planned(summary=OUT, reward="paper", alpha=0.1)
    assert how is None and (asked.summary, asked.reward, asked.alpha) == (OUT, "paper", 0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "say where to store the outcomes, for instance --out rewards"),
        ({"summary": OUT, "out": OUT}, "--summary only reads a collection; leave out --out"),
        ({"summary": OUT, "queries": [OUT]}, "--summary only reads a collection"),
        ({"out": OUT, "ray_address": "auto"}, "add --engine ray"),
        ({"out": OUT, "temperatures": "1"}, "0 must be among the temperatures"),
        ({"out": OUT, "at_once": "8"}, "1 must be the least"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        planned(**options)
