"""One batch of queries through the target and every arm, at every temperature and load.

    target writes, greedily or to a seed -> each arm's loop replayed along its answer -> rows

Every arm is judged along the same answer, which with the same seed is what it writes itself. An arm
whose answers are its own (it does not draft, or its verifier is lossy) is run as it is. With
several seeds all of this is done for each of them. At temperature 0 each drafter also writes alone,
for ROUGE-L.

Where several answers share the target's passes, a drafted token costs more, and arms that go by
costs draft less. The answers stay what they are, so that only the arms' loops are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collect.replay.records import Replay, Written
from decoders.common.errors import NotANumber
from decoders.common.seeds import derived_seed
from decoders.common.wording import in_words

from ..records import ArmInfo, OutcomeRow, counted, error_row
from ..rouge import rouge_l
from .batch import (
    Collected,
    Prompt,
    Setup,
    SweepOptions,
    each,
    failed_query,
    measure,
    query_row,
    seed_of,
)
from .repetition import is_repetitive

if TYPE_CHECKING:
    from ..replay.batch import Batch

_Answered = tuple[Prompt, OutcomeRow]  # what an arm did on a prompt on its own


def collect_loads(setup: Setup, prompts: Sequence[Prompt]) -> Collected:
    """Every arm on every prompt, at every temperature and load; a failure becomes an error row,
    never an exception."""
    batch, options = setup.batch, setup.options
    done = collect_temperatures(setup, prompts)
    by_id = {prompt.query.id: prompt for prompt in prompts}
    groups: dict[tuple[float, int, str], list[_Answered]] = {}
    failed = {row.query_id for row in done.queries if row.embedding is None}  # have all rows
    for row in done.outcomes:
        if row.query_id in failed:
            continue
        key = row.temperature, row.draw, row.arm
        groups.setdefault(key, []).append((by_id[row.query_id], row))
    infos = {arm.name: arm for arm in setup.arms}
    for answers in options.at_once[1:]:
        for (temperature, draw, arm), group in groups.items():
            with batch.at_batch_size(answers):
                replayed = partial(
                    _replayed, batch, arm, options.max_new_tokens, temperature, answers - 1
                )
                known = [pair for pair in group if pair[1].error is None]
                found = iter(each(known, replayed))
            rows: list[OutcomeRow] = []
            for prompt, row in group:
                made = next(found) if row.error is None else replace(row, running=answers - 1)
                if isinstance(made, Exception):
                    id_, reason = prompt.query.id, in_words(made)
                    made = error_row(id_, infos[arm], reason, temperature, answers - 1, draw)
                rows.append(made)
            setup.on_rows(rows)
            done.outcomes.extend(rows)
    return done


def _replayed(
    batch: Batch,
    arm: str,
    max_new_tokens: int,
    temperature: float,
    running: int,
    group: Sequence[_Answered],
) -> list[OutcomeRow]:
    """An arm whose answers are its own makes the same rounds at any load."""
    rows = [
        replace(
            row,
            running=running,
            prefill_s=None,
            decode_s=None,
            measured_tokens=None,
            measured_prefill_s=None,
            measured_decode_s=None,
            output_ids=(),
            text="",
            target_ids=(),
            agree=(),
        )
        for _, row in group
    ]
    drafts = any(row.drafted for _, row in group)
    if not drafts or not batch.is_replayable(arm, temperature):
        return rows
    prompts, answers = [prompt.ids for prompt, _ in group], [list(r.target_ids) for _, r in group]
    seeds = [row.seed for row in rows if row.seed is not None]
    replays = batch.replay(arm, prompts, answers, max_new_tokens, temperature, seeds)
    return [replace(row, **counted(each)) for row, each in zip(rows, replays, strict=True)]


@dataclass(frozen=True)
class Answered:
    """The target's answer to a prompt.

    seed: None for the greedy one, which has its text, and the prompt's embedding [d].
    """

    prompt: Prompt
    ids: list[int]
    seed: int | None = None
    text: str = ""
    embedding: NDArray[np.float32] | None = None


def collect_temperatures(setup: Setup, prompts: Sequence[Prompt]) -> Collected:
    """Every arm on every prompt at every temperature; a failure becomes an error row, never an
    exception."""
    embedder, options, done = setup.engine.embedder, setup.options, Collected([], [])
    found = each(prompts, partial(_greedy, setup))
    for prompt, answer in zip(prompts, found, strict=True):
        if isinstance(answer, Exception):
            failed = failed_query(prompt, setup.arms, embedder, answer, options)
            setup.on_rows(failed.outcomes)
            done.queries.extend(failed.queries)
            done.outcomes.extend(failed.outcomes)
    answered = [answer for answer in found if isinstance(answer, Answered)]
    kept = [answer.prompt for answer in answered]
    done.outcomes.extend(_rows(setup, kept, answered, 0.0, 0))
    done.queries.extend(
        query_row(one.prompt, embedder, one.embedding, one.text, options) for one in answered
    )
    for temperature, number in options.answers:
        if temperature > 0:
            drawn = each(kept, partial(_drawn, setup, temperature, number))
            done.outcomes.extend(_rows(setup, kept, drawn, temperature, number))
    return done


def _greedy(setup: Setup, prompts: Sequence[Prompt]) -> list[Answered]:
    """The target's greedy answers; those that will be asked for next are drawn meanwhile."""
    options = setup.options
    drawn = [
        (temperature, [seed_of(options, one.query.id, temperature, number) for one in prompts])
        for temperature, number in options.answers
        if temperature > 0
    ]
    if options.similarity and any(arm.autoregressive for arm in setup.arms):
        drawn.append((options.temperature, [_own_seed(options, one) for one in prompts]))
    ids = [prompt.ids for prompt in prompts]
    written = setup.batch.target(ids, options.max_new_tokens, also=drawn)
    assert written.embeddings is not None
    if not np.isfinite(written.embeddings).all():
        raise NotANumber("the model's embeddings")
    return [
        Answered(prompt, list(ids), None, setup.text(ids), np.asarray(embedding, dtype=np.float32))
        for prompt, ids, embedding in zip(prompts, written.ids, written.embeddings, strict=True)
    ]


def _drawn(
    setup: Setup, temperature: float, number: int, prompts: Sequence[Prompt]
) -> list[Answered]:
    options, ids = setup.options, [prompt.ids for prompt in prompts]
    seeds = [seed_of(options, prompt.query.id, temperature, number) for prompt in prompts]
    written = setup.batch.target(ids, options.max_new_tokens, temperature, seeds)
    return [Answered(*one) for one in zip(prompts, written.ids, seeds, strict=True)]


def _own_seed(options: SweepOptions, prompt: Prompt) -> int:
    """Seed of the answer that the autoregressive arm is scored by."""
    return derived_seed(options.seed, "similarity", prompt.query.id)


def _rows(
    setup: Setup,
    prompts: Sequence[Prompt],
    answers: Sequence[Answered | Exception],
    temperature: float,
    number: int,
) -> list[OutcomeRow]:
    """A row for each prompt and arm; at temperature 0 with its times, where they are measured."""
    arms, timed = setup.arms, setup.options.measure and not temperature
    answered = [answer for answer in answers if isinstance(answer, Answered)]
    if failed := [one for one in answers if isinstance(one, Exception) for _ in arms]:
        setup.on_rows(failed)
    by_arm = []
    for arm in arms:
        found = each(answered, partial(_arm_rows, setup, temperature, number, arm))
        if not timed:
            setup.on_rows(found)
        by_arm.append(iter(found))
    done: list[OutcomeRow] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        rows = []
        for arm, made in zip(arms, by_arm, strict=True):
            row = next(made) if isinstance(answer, Answered) else answer
            if isinstance(row, Exception):
                row = error_row(prompt.query.id, arm, in_words(row), temperature, draw=number)
            rows.append(row)
        if timed:
            rows = measure(setup, prompt, rows)
            setup.on_rows(rows)
        done.extend(rows)
    return done


def _arm_rows(
    setup: Setup, temperature: float, number: int, arm: ArmInfo, group: Sequence[Answered]
) -> list[OutcomeRow]:
    """written: by the drafter alone, or by an arm whose answers are its own; None by neither."""
    batch, options = setup.batch, setup.options
    most, alone = options.max_new_tokens, options.similarity and not temperature
    prompts, answers = [one.prompt.ids for one in group], [one.ids for one in group]
    seeds = [one.seed for one in group]
    written: Written | None = None
    if arm.autoregressive:
        replays = [Replay.without_drafts(ids) for ids in answers]
        if alone:  # greedy would match itself perfectly; a drawn one is scored (Huang et al., 3.4)
            own = [_own_seed(options, one.prompt) for one in group]
            written, seeds = batch.target(prompts, most, options.temperature, own), [*own]
    elif batch.is_replayable(arm.name, temperature):
        if alone:
            written = batch.arm(arm.name, prompts, most)
        drawn_by = [seed for seed in seeds if seed is not None]
        replays = batch.replay(arm.name, prompts, answers, most, temperature, drawn_by)
    else:
        written = batch.live(arm.name, prompts, most, temperature, seeds)
        replays = written.replays or []
    rows = [
        OutcomeRow(
            query_id=one.prompt.query.id,
            arm=arm.name,
            temperature=temperature,
            draw=number,
            parameters=arm.parameters,
            **counted(replay),
            new_tokens=len(one.ids),
            repetitive=is_repetitive(one.ids, setup.engine.eos_ids),
            seed=seed,
            target_ids=tuple(one.ids),
            agree=tuple(replay.agree),
        )
        for one, replay, seed in zip(group, replays, seeds, strict=True)
    ]
    if written is None:
        return rows
    texts = [setup.text(ids) for ids in written.ids]
    return [
        replace(
            row,
            rouge_l=None if temperature else rouge_l(one.text, text),
            new_tokens=len(one.ids if written.replays is None else ids),
            prefill_s=written.prefill_s / len(group),
            decode_s=written.decode_s / len(group),
            output_ids=tuple(ids),
            text=text,
        )
        for one, row, ids, text in zip(group, rows, written.ids, texts, strict=True)
    ]
