"""The records of a collection: what is known of a query, an arm, and one arm on one query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collect.replay.records import Replay


@dataclass(frozen=True)
class ArmInfo:
    """What rewards need to know of an arm.

    kind: "autoregressive" for the target alone, else how it drafts.
    parameters: weights read for one drafted token, the target's where nothing drafts, 0 for an
        n-gram table.
    recipe: the arm as declared, JSON-ready.
    """

    name: str
    kind: str
    parameters: int
    lossless: bool
    recipe: dict[str, Any]

    @property
    def autoregressive(self) -> bool:
        return self.kind == "autoregressive"


@dataclass(frozen=True, kw_only=True)
class QueryRow:
    """A row of the `queries` table.

    turns: all of the user's messages; only the first is collected, so prompt_ids and embedding
        are those of the first.
    embedding: [d] float32, or None where the target failed on it.
    target_text: the target's greedy answer, "" where it failed.
    max_new_tokens: what the answer was asked to have at most.
    group: as of `Query`.
    """

    query_id: str
    task: str
    category: str | None
    source: str
    turns: tuple[str, ...]
    reference: str | None
    prompt_ids: tuple[int, ...]
    embedding: NDArray[np.float32] | None
    embedder: str
    target_text: str
    max_new_tokens: int
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of one arm on one query at one temperature, with `running` other answers; every
    reward is a function of them.

    running: other answers that are written at the same time.
    draw: which of the seeds of the query at this temperature, from 0.
    rouge_l: F-measure of the arm's own text against the target's greedy text, in [0, 1]; None above
        temperature 0.
    parameters: as ArmInfo.
    rounds, drafted, accepted: what the arm's loop does while it writes the target's answer: the
        greedy one, or above temperature 0 the one to the row's seed.
    calls: steps that the models of its drafter took meanwhile; None where each drafted token is
        one, as it is not where tokens are copied too.
    widths: at index i, how many of the rounds' passes read i + 1 tokens; None where nobody counted,
        as of endpoints.
    new_tokens: tokens of that answer, end-of-sequence included; the first comes from the prompt's
        own pass, so rounds give new_tokens - 1.
    repetitive: whether the target's answer repeats itself to the end (see `sweeps.repetition`);
        None where the arm failed.
    prefill_s, decode_s: this query's share of the batch in which the arm wrote its own text.
    measured_*: one decode at batch 1 through the arm, None unless the collection measured;
        measured_tokens and new_tokens None where an endpoint did not count them.
    prompt_tokens: of the prompt, as an endpoint counted them; None for the arms of a target.
    seed: of the sampled answer (autoregressive arm, and every arm above temperature 0), else None.
    error: why there are no numbers, else None.

    Rows with others (running > 0) have the target's answer and what is the same for every load
    from the row without others; only rounds, drafted, accepted, calls and widths are their own.

    For an arm whose answer is its own (it does not draft, its verifier is lossy, or writes other
    answers than the target to the same seed) rounds, drafted, accepted and new_tokens are of its
    own answer, and rounds counts the target's passes after the prompt's: 0 where it was not asked.
    """

    query_id: str
    arm: str
    temperature: float = 0.0
    running: int = 0
    draw: int = 0
    rouge_l: float | None = None
    parameters: int
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    calls: int | None = None
    widths: tuple[int, ...] | None = None
    new_tokens: int | None = None
    repetitive: bool | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    measured_tokens: int | None = None
    measured_prefill_s: float | None = None
    measured_decode_s: float | None = None
    prompt_tokens: int | None = None
    seed: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutcomeRow(Outcome):
    """A row of the `outcomes` table: the numbers and the tokens behind them.

    output_ids, text: what the arm's drafter (or the sampling target) wrote on its own, or the arm
        where its answer is its own.
    target_ids: the target's answer at this temperature.
    agree: at position i, whether the drafter, given the target's first i tokens, would draft token
        i; empty for an arm that drafts nothing, for one whose answer is its own, and above
        temperature 0.
    """

    output_ids: tuple[int, ...] = ()
    text: str = ""
    target_ids: tuple[int, ...] = ()
    agree: tuple[bool, ...] = ()


def counted(made: Replay) -> dict[str, Any]:
    """The fields of an outcome that an arm's loop along the target's answer gives."""
    return {
        "rounds": made.rounds,
        "drafted": made.drafted,
        "accepted": made.accepted,
        "calls": made.calls,
        "widths": tuple(made.widths) or None,
    }


class OutcomeKey(NamedTuple):
    """Key under which every arm has a row. running, draw: as in Outcome."""

    query: str
    temperature: float
    running: int = 0
    draw: int = 0

    @property
    def name(self) -> str:
        """ID, ID@TEMPERATURE, or ID@TEMPERATUREx(answers at once); the same for all draws."""
        if self.running:
            return f"{self.query}@{self.temperature:g}x{self.running + 1}"
        return f"{self.query}@{self.temperature:g}" if self.temperature else self.query


def error_row(
    query_id: str,
    arm: ArmInfo,
    message: str,
    temperature: float = 0.0,
    running: int = 0,
    draw: int = 0,
) -> OutcomeRow:
    """A row without numbers, so that a failure can never be read as a result."""
    return OutcomeRow(
        query_id=query_id,
        arm=arm.name,
        temperature=temperature,
        running=running,
        draw=draw,
        parameters=arm.parameters,
        error=message,
    )
