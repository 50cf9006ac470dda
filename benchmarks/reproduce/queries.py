"""The questions of the T5 family, in the words it was trained with; all ours to ship."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from collect.queries import Query, shipped

from .abstracts import abstracts
from .captions import captions

SUMMARIZE = "summarize: "
ABSTRACTS = 120  # as many as the test has
QUESTION = "Q: "  # Huang et al., table 10
_SENTENCE = re.compile(r"(?<=[.!?\"”]) +(?=[A-Z\"“])")

Split = Literal["train", "test"]


def translations(split: Split, limit: int) -> list[Query]:
    """Captions, English to German."""
    return captions(split, limit)


def articles(split: Split, limit: int) -> list[Query]:
    """Texts to summarise: the articles that ship, abstracts, and, without a reference, the passages
    of the questions on documents and, of the training, the halves of the articles."""
    whole = [
        replace(query, turns=(_body(query),), group=query.group or query.id)  # its halves' too
        for query in _shipped(split, "summarization")
    ]
    more = list(_passages(_shipped(split, "rag"), split))
    if split == "train":
        more += [half for query in whole for half in _halves(query)]
    random.Random(0).shuffle(more)
    found = [*whole, *abstracts(split, ABSTRACTS), *more][:limit]
    return [replace(query, turns=(SUMMARIZE + query.turns[0],)) for query in found]


def word_problems(split: Split, limit: int) -> list[Query]:
    """Problems in mathematics, which neither drafter was trained for."""
    asked = _shipped(split, "math")[:limit]
    return [replace(query, turns=(QUESTION + query.turns[0],)) for query in asked]


def _body(query: Query) -> str:
    """The article without the words that ask for a summary."""
    return query.turns[0].partition(":")[2].strip()


def _passages(queries: Sequence[Query], split: str) -> Iterable[Query]:
    """Each passage once; the last line of a question on documents is the question."""
    lines = dict.fromkeys(line for query in queries for line in query.turns[0].splitlines()[:-1])
    for number, line in enumerate(lines, 1):
        yield Query(f"passage-{split}-{number:03d}", "summarization", (line,), None, "draftpick")


def _halves(query: Query) -> Iterable[Query]:
    parts = _SENTENCE.split(query.turns[0])
    middle = len(parts) // 2
    for name, half in (("first", parts[:middle]), ("second", parts[middle:])):
        if half:
            yield replace(query, id=f"{query.id}-{name}", turns=(" ".join(half),), reference=None)


def _shipped(split: Split, task: str) -> list[Query]:
    return [query for query in shipped(split) if query.task == task]
