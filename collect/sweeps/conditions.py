"""One batch of queries at every temperature and load: at temperature 0 as in `batch.py`, above it

    target writes an answer to a seed -> each arm's loop replayed along it -> rows

where every arm is judged along the same answer, which with the same seed is what it writes itself.
An arm whose answers are its own is run. With several seeds all of this is done for each of them.

Where several answers share the target's passes, a drafted token costs more, and arms that go by
costs draft less. The answers stay what they are, so that only the arms' loops are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from collect.replay.records import Replay
from decoders.common.wording import in_words

from ..records import ArmInfo, OutcomeRow, counted, error_row
from .batch import Collected, Prompt, Setup, collect_batch, each, seed_of
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
class Drawn:
    """An answer that the target wrote to a seed."""

    prompt: Prompt
    ids: list[int]
    seed: int


def collect_temperatures(setup: Setup, prompts: Sequence[Prompt]) -> Collected:
    """Every arm on every prompt at every temperature; a failure becomes an error row, never an
    exception."""
    done = collect_batch(setup, prompts)
    failed = {row.query_id for row in done.queries if row.embedding is None}
    answered = [prompt for prompt in prompts if prompt.query.id not in failed]
    for temperature, draw in setup.options.answers:
        if temperature > 0:
            done.outcomes.extend(_rows(setup, answered, temperature, draw))
    return done


def _rows(
    setup: Setup, prompts: Sequence[Prompt], temperature: float, number: int
) -> list[OutcomeRow]:
    arms, options = setup.arms, setup.options

    def draw(group: Sequence[Prompt]) -> list[Drawn]:
        seeds = [seed_of(options, prompt.query.id, temperature, number) for prompt in group]
        ids = [prompt.ids for prompt in group]
        written = setup.batch.target(ids, options.max_new_tokens, temperature, seeds)
        return [Drawn(*one) for one in zip(group, written.ids, seeds, strict=True)]

    answers = each(prompts, draw)
    drawn = [answer for answer in answers if isinstance(answer, Drawn)]
    setup.on_rows([one for one in answers if isinstance(one, Exception) for _ in arms])
    by_arm = []
    for arm in arms:
        found = each(drawn, partial(_arm_rows, setup, temperature, number, arm))
        setup.on_rows(found)
        by_arm.append(iter(found))
    rows: list[OutcomeRow] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        for arm, made in zip(arms, by_arm, strict=True):
            row = next(made) if isinstance(answer, Drawn) else answer
            if isinstance(row, Exception):
                row = error_row(prompt.query.id, arm, in_words(row), temperature, draw=number)
            rows.append(row)
    return rows


def _arm_rows(
    setup: Setup, temperature: float, number: int, arm: ArmInfo, drawn: Sequence[Drawn]
) -> list[OutcomeRow]:
    batch, most = setup.batch, setup.options.max_new_tokens
    prompts, answers = [one.prompt.ids for one in drawn], [one.ids for one in drawn]
    seeds = [one.seed for one in drawn]
    own: list[list[int]] | None = None
    if arm.autoregressive:
        found = [Replay.without_drafts(ids) for ids in answers]
    elif batch.is_replayable(arm.name, temperature):
        found = batch.replay(arm.name, prompts, answers, most, temperature, seeds)
    else:
        written = batch.live(arm.name, prompts, most, temperature, seeds)
        own, found = written.ids, written.replays or []
    rows = []
    for index, (one, figures) in enumerate(zip(drawn, found, strict=True)):
        ids = own[index] if own is not None else ()
        rows.append(
            OutcomeRow(
                query_id=one.prompt.query.id,
                arm=arm.name,
                temperature=temperature,
                draw=number,
                parameters=arm.parameters,
                **counted(figures),
                new_tokens=len(ids or one.ids),
                repetitive=is_repetitive(one.ids, setup.engine.eos_ids),
                seed=one.seed,
                output_ids=tuple(ids),
                text=setup.text(ids),
                target_ids=tuple(one.ids),
            )
        )
    return rows
