"""One batch of queries at every temperature: at 0 as in `batch.py`, and above it

    target draws an answer -> one pass of target and drafter along it -> expected rounds -> rows

where every arm is judged along the same answer. An arm whose answers are its own is run, once. With
several draws all of this is done for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from collect.replay.records import Expected, Replay
from decoders.common.wording import in_words

from ..records import ArmInfo, OutcomeRow, counted, error_row
from .batch import Collected, Prompt, Setup, collect_batch, each, seed_of
from .repetition import is_repetitive


@dataclass(frozen=True)
class Drawn:
    """An answer that the target drew. seed: of this answer, and of what the arms draw along it."""

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
    found: list[Expected] | None
    if arm.autoregressive:
        found = [Expected.of(Replay.without_drafts(ids)) for ids in answers]
    else:
        found = batch.expected(arm.name, prompts, answers, most, temperature, seeds)
    if found is None:
        written = batch.live(arm.name, prompts, most, temperature, seeds)
        own = written.ids
        found = [Expected.of(replay, "live") for replay in written.replays or ()]
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
                how=figures.how,
                new_tokens=len(ids or one.ids),
                repetitive=is_repetitive(one.ids, setup.engine.eos_ids),
                seed=one.seed,
                output_ids=tuple(ids),
                text=setup.text(ids),
                target_ids=tuple(one.ids),
            )
        )
    return rows
