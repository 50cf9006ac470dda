"""Calibration examples: a prompt and what the target wrote after it, as token ids."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collect.lines import json_lines
from collect.queries import Query, independent, text_name
from decoders.common.errors import DraftpickError

from .packed_batch import order

HELD_OUT_PERCENT = 3


@dataclass(frozen=True)
class Example:
    """group: of the queries that share a text or a source with its own.
    ids: prompt then answer, int32.
    start: index of the answer's first token.
    text: `text_name` of the query.
    """

    group: str
    task: str
    ids: np.ndarray
    start: int
    text: str = ""

    @property
    def held_out(self) -> bool:
        """A fixed few percent of groups, by name, never trained on."""
        return zlib.crc32(self.group.encode()) % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True)
class Batch:
    """ids: [B, T] int64, padded on the right with 0.
    labels: [B, T], the next token where it is part of an answer, else -100.
    tasks: one a row.
    """

    ids: np.ndarray
    labels: np.ndarray
    tasks: list[str]


def read_outputs(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of an outputs file: id, task, output (text) or ids, ended (false: cut at a limit).
    Raises DraftpickError naming file and line."""
    for where, row in json_lines(path, "outputs file"):
        if not isinstance(row, dict) or "id" not in row or not _is_answer(row):
            raise DraftpickError(
                f"{where}: needs `id` and one of `output` (a string), `ids` (token ids)"
            )
        yield row


def _is_answer(row: dict[str, Any]) -> bool:
    if "ids" not in row:
        return isinstance(row.get("output"), str)
    ids = row["ids"]
    return isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids)


def paired(
    outputs: Sequence[Path], queries: Sequence[Query]
) -> Iterator[tuple[dict[str, Any], Query]]:
    """Every line of the outputs with its query. Raises DraftpickError for one whose query is not
    there: it would be trained on without its prompt."""
    by_id = {query.id: query for query in queries}
    for path in outputs:
        for row in read_outputs(path):
            query = by_id.get(str(row["id"]))
            if query is None:
                raise DraftpickError(
                    f"{path}: no query has the id {row['id']!r}; name its file too"
                )
            yield row, query


def build(
    outputs: Sequence[Path],
    queries: Sequence[Query],
    prompt_ids: Callable[[Query], list[int]],
    answer_ids: Callable[[str], list[int]],
    eos_id: int | None,
    *,
    tasks: Sequence[str] | None,
    max_prompt: int,
    max_answer: int,
) -> list[Example]:
    """Join outputs with their queries (first turn) and tokenise both; empty answers are left out.

    eos_id: ends an answer that had ended; None of a target that has no such token.
    prompt_ids, answer_ids: tokenise. A prompt keeps its last `max_prompt` tokens.
    tasks: train on these alone; what is held out stays whole, so that a specialist shows its weak
        sides.
    """
    texts = {query.id: text_name(query.turns[0]) for query in queries}
    groups = independent({query.id: (texts[query.id], query.group) for query in queries})
    examples = []
    for row, query in paired(outputs, queries):
        prompt = prompt_ids(query)
        if "ids" in row:
            answer = list(row["ids"])
        else:
            answer = answer_ids(row["output"])
            if row.get("ended") and eos_id is not None:
                answer.append(eos_id)
        prompt = prompt[-max_prompt:]
        ids = np.array(prompt + answer[:max_answer], dtype=np.int32)
        example = Example(groups[query.id], query.task, ids, len(prompt), texts[query.id])
        if answer and (example.held_out or not tasks or query.task in tasks):
            examples.append(example)
    if all(example.held_out for example in examples):
        raise DraftpickError(
            "no examples are left to train on; check --outputs, --queries and --tasks"
        )
    return examples


def batches(examples: Sequence[Example], tokens: int, seed: int) -> list[Batch]:
    """One epoch, in the `order` of at most `tokens` padded tokens each."""
    lengths = np.array([len(e.ids) for e in examples], np.int64)
    groups = order(lengths, tokens, np.random.default_rng(seed))
    return [_stack([examples[at] for at in rows]) for rows in groups]


def _stack(rows: list[Example]) -> Batch:
    width = max(len(e.ids) for e in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    labels = np.full((len(rows), width), -100, dtype=np.int64)
    for at, example in enumerate(rows):
        n = len(example.ids)
        ids[at, :n] = example.ids
        labels[at, example.start - 1 : n - 1] = example.ids[example.start :]
    return Batch(ids, labels, [e.task for e in rows])
