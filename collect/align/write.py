"""Let the target write the answers that a drafter is trained on."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collect.queries import Query, read_queries, shipped_folder
from decoders.common.errors import ContextTooLong, NotANumber
from decoders.common.files import whole_lines
from decoders.common.terminal import progress
from decoders.common.text import from_json
from decoders.options import EngineOptions

from ..sweeps.batch import each

if TYPE_CHECKING:
    from torch import Tensor

    from ..replay.batch import Batch
    from .kept_states import KeptStates

OUTPUTS = "outputs.jsonl"
BATCH = 128  # queries; written out together, and lost together where a run is killed


def _written(
    batch: Batch, max_new_tokens: int, prompts: Sequence[list[int]]
) -> list[tuple[list[int], Tensor | None]]:
    """Each answer with its states, where they were kept."""
    made = batch.target([*prompts], max_new_tokens)
    states = [None] * len(made.ids) if made.states is None else made.states
    return list(zip(made.ids, states, strict=True))


def default_queries() -> list[Path]:
    """The training queries that ship."""
    return sorted(shipped_folder("train").glob("*.jsonl"))


def write_outputs(
    queries: Sequence[Path],
    out: Path,
    options: EngineOptions,
    max_new_tokens: int,
    tasks: Sequence[str] | None,
    minutes: float | None = None,
    states: KeptStates | None = None,
) -> Path:
    """Greedy answers of the target to every query's first turn, appended to OUT/outputs.jsonl.

    Call it again to resume after the last whole line; no query is asked twice. Batches come in a
    random order, so that what is there after any time is a fair sample, those first that bring a
    task of which nothing is there.

    minutes: begin no further batch after this time; None answers all.
    states: keeps those that the target has in front of each token; None keeps none.
    """
    from collect.replay.batch import Batch
    from decoders import Engine

    out.mkdir(parents=True, exist_ok=True)
    path = out / OUTPUTS
    answered = whole_lines(path).splitlines() if path.is_file() else []
    done = {from_json(line)["id"] for line in answered}
    wanted = [q for q in read_queries(list(queries)) if not tasks or q.task in tasks]
    todo = [q for q in wanted if q.id not in done]
    if not todo:
        return path
    engine = Engine.from_options(options)
    batch = Batch(engine)
    asked = [(q, q.prompt(engine.encode_chat)) for q in todo]
    asked.sort(key=lambda pair: len(pair[1]))  # similar lengths together: little padding
    groups = [asked[i : i + BATCH] for i in range(0, len(asked), BATCH)]
    random.Random(0).shuffle(groups)
    known = {q.task for q in wanted if q.id in done}

    def brings_nothing_new(group: Sequence[tuple[Query, list[int]]]) -> bool:
        new = {q.task for q, _ in group} - known
        known.update(new)
        return not new

    groups.sort(key=brings_nothing_new)
    written, began = len(wanted) - len(todo), time.monotonic()
    with (
        path.open("a", encoding="utf-8") as stream,
        progress("the target writes", "answers") as tick,
    ):
        tick(written, len(wanted))
        for group in groups:
            if minutes is not None and time.monotonic() - began > 60 * minutes:
                break
            answers = each([ids for _, ids in group], partial(_written, batch, max_new_tokens))
            for (query, prompt), answer in zip(group, answers, strict=True):
                if isinstance(answer, NotANumber | ContextTooLong):
                    print(f"the query {query.id!r} is left out: {answer}", file=sys.stderr)
                    continue
                if isinstance(answer, Exception):
                    raise answer
                ids, found = answer
                if states is not None and found is not None:
                    states.put([(np.array(prompt + ids), len(prompt), found)])
                ended = bool(ids) and ids[-1] in engine.eos_ids
                row = {"id": query.id, "task": query.task, "ids": ids, "ended": ended}
                stream.write(json.dumps(row) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
            written += len(group)
            tick(written, len(wanted))
    return path
