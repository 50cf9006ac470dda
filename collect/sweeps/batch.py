"""Options of a sweep, and one batch of its queries, whatever fails on the way.

Where a step fails on the batch (memory, most often) each half of it is tried, down to single
queries; where one fails alone, its row holds the error and nothing else. The steps themselves are
in `conditions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from collect.queries import Query
from decoders.common.errors import DraftpickError
from decoders.common.seeds import derived_seed
from decoders.common.wording import in_words
from decoders.records import Request
from decoders.spelling import text_of

from ..records import ArmInfo, OutcomeRow, QueryRow, error_row
from .protocols import SweepEngine

if TYPE_CHECKING:
    from ..replay.batch import Batch

T = TypeVar("T")
R = TypeVar("R")

OnRows = Callable[[Sequence["OutcomeRow | Exception"]], None]
"""Called with rows as soon as they are known, and errors in the place of rows."""


def no_progress(rows: Sequence[OutcomeRow | Exception]) -> None:
    """For a caller that waits for all of the rows."""


@dataclass(frozen=True)
class SweepOptions:
    """How to collect.

    arms: names, in the order of the table; () for all that the engine has.
    max_new_tokens: length of every answer.
    batch_size: queries decoded together.
    temperature: of the autoregressive arm's sampled answer (Huang et al., section 3.4).
    temperatures: those at which every arm is collected, 0 among them; kept in order, each once.
    at_once: numbers of answers that share the target's passes, for each of which the arms' rounds
        are collected, 1 among them; kept likewise.
    draws: seeds for each query at each temperature above 0; the target writes an answer to each,
        and every arm is judged along all of them.
    similarity: let every drafter also write an answer on its own, to compare with the target's; the
        rewards of similarity need it, and it takes about half of the time.
    measure: also decode every query through every arm at batch 1 and keep the times.
    seed: of the sampled answers and of random orders.
    """

    arms: tuple[str, ...] = ()
    max_new_tokens: int = 64
    batch_size: int = 64
    temperature: float = 1.0
    measure: bool = False
    similarity: bool = True
    seed: int = 0
    temperatures: tuple[float, ...] = (0.0,)
    at_once: tuple[int, ...] = (1,)
    draws: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", tuple(sorted(set(map(float, self.temperatures)))))
        if not all(0 <= each < math.inf for each in self.temperatures):
            raise DraftpickError(
                f"a temperature must be 0 or a finite number above, not {self.temperatures}"
            )
        if 0.0 not in self.temperatures:
            raise DraftpickError(
                "0 must be among the temperatures, since similarity and losses are of greedy "
                f"answers; give for instance 0,1, not {self.temperatures}"
            )
        object.__setattr__(self, "at_once", tuple(sorted(set(self.at_once))))
        if self.at_once[:1] != (1,):
            raise DraftpickError(
                "1 must be the least of the numbers of answers at once, since the others are "
                f"compared with it; give for instance 1,8,32, not {self.at_once}"
            )
        if self.draws < 1:
            raise DraftpickError(f"the number of draws must be at least 1, not {self.draws}")
        if self.draws > 1 and self.temperatures == (0.0,):
            raise DraftpickError(
                f"{self.draws} draws need a temperature above 0, since greedy answers are all the "
                "same; add for instance --temperatures 0,1"
            )
        if self.max_new_tokens < 1:
            raise DraftpickError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if self.batch_size < 1:
            raise DraftpickError(f"the batch size must be at least 1, not {self.batch_size}")
        if not 0 < self.temperature < math.inf:
            raise DraftpickError(
                "the autoregressive arm needs a finite temperature above 0: a greedy answer scored "
                f"against itself is always 1 (got {self.temperature:g})"
            )

    @property
    def answers(self) -> list[tuple[float, int]]:
        """The temperature and the number of the seed of each answer that a query gets."""
        return [(at, draw) for at in self.temperatures for draw in range(self.draws if at else 1)]


@dataclass(frozen=True)
class Prompt:
    """A query and its first turn as token ids."""

    query: Query
    ids: list[int]


@dataclass(frozen=True)
class Collected:
    """Queries, one QueryRow each, with one OutcomeRow each per arm and temperature."""

    queries: list[QueryRow]
    outcomes: list[OutcomeRow]


@dataclass(frozen=True)
class Setup:
    """What collects every batch.

    on_rows: called after each arm, or where arms are timed after each prompt.
    """

    engine: SweepEngine
    batch: Batch
    arms: Sequence[ArmInfo]
    options: SweepOptions
    on_rows: OnRows = no_progress

    def text(self, ids: Iterable[int]) -> str:
        return text_of(self.engine.tokenizer, ids)


def seed_of(options: SweepOptions, query_id: str, temperature: float, draw: int = 0) -> int:
    """Seed of one query's sampled answer; independent of the rest of the collection, and of how
    many seeds there are."""
    more = ("draw", draw) if draw else ()
    return derived_seed(options.seed, "temperature", f"{temperature:g}", query_id, *more)


def failed_query(
    prompt: Prompt, arms: Sequence[ArmInfo], embedder: str, error: Exception, options: SweepOptions
) -> Collected:
    """A query without a target answer: no embedding, and an error row for every arm, temperature,
    draw and load."""
    return Collected(
        [query_row(prompt, embedder, None, "", options)],
        [
            error_row(prompt.query.id, arm, in_words(error), temperature, answers - 1, draw)
            for answers in options.at_once
            for temperature, draw in options.answers
            for arm in arms
        ],
    )


def measure(setup: Setup, prompt: Prompt, rows: Sequence[OutcomeRow]) -> list[OutcomeRow]:
    """The rows with measured times: one greedy decode an arm, arms in a random order that the
    seed and the query fix, the prompt's pass through the target done once for all of them."""
    engine, arms = setup.engine, setup.arms
    request = Request(max_new_tokens=setup.options.max_new_tokens)
    measured = list(rows)
    rng = np.random.default_rng(derived_seed(setup.options.seed, prompt.query.id))
    try:
        prefilled = engine.prefill(prompt.ids)
    except Exception as error:  # whatever a backend raises is this query's outcome
        message = f"while measuring: {in_words(error)}"
        return [error_row(prompt.query.id, arm, message) for arm in arms]
    for index in rng.permutation(len(arms)).tolist():
        if measured[index].error is not None:
            continue
        try:
            result = engine.decode(arms[index].name, prompt.ids, request, prefilled=prefilled)
        except Exception as error:  # as above, for this arm
            message = f"while measuring: {in_words(error)}"
            measured[index] = error_row(prompt.query.id, arms[index], message)
            continue
        measured[index] = replace(
            measured[index],
            measured_tokens=len(result.ids),
            measured_prefill_s=result.prefill_s,
            measured_decode_s=result.decode_s,
        )
    return measured


def each(items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R | Exception]:
    """work(items), or where that fails, each half so; a single item's failure is its result."""
    if not items:
        return []
    try:
        results = work(items)
        if len(results) != len(items):
            raise RuntimeError(f"{len(items)} prompts gave {len(results)} results")
        return list(results)
    except Exception as error:  # any backend, any error: retried in parts below
        if len(items) == 1:
            return [error]
    half = len(items) // 2
    return each(items[:half], work) + each(items[half:], work)


def query_row(
    prompt: Prompt,
    embedder: str,
    embedding: NDArray[np.float32] | None,
    target_text: str,
    options: SweepOptions,
) -> QueryRow:
    query = prompt.query
    return QueryRow(
        query_id=query.id,
        task=query.task,
        category=query.category,
        source=query.source,
        turns=query.turns,
        reference=query.reference,
        prompt_ids=tuple(prompt.ids),
        embedding=embedding,
        embedder=embedder,
        target_text=target_text,
        max_new_tokens=options.max_new_tokens,
        group=query.group,
    )
