"""The answers of one batch, as if others were written next to them: rows for every load.

Where several answers share the target's passes, a drafted token costs more, and arms that go by
costs draft less. The answers stay what they are, so that only the arms' loops are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from collect.replay.records import Expected
from decoders.common.wording import in_words

from ..records import OutcomeRow, counted, error_row
from .batch import Collected, Prompt, Setup, each
from .protocols import BatchDecoder
from .sampled import collect_temperatures

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
    batch: BatchDecoder,
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
    if not drafts or not batch.is_replayable(arm):
        return rows
    prompts, answers = [prompt.ids for prompt, _ in group], [list(r.target_ids) for _, r in group]
    if temperature == 0:
        replays = batch.replay(arm, prompts, answers, max_new_tokens)
        return [
            replace(row, **counted(Expected.of(replay)))
            for row, replay in zip(rows, replays, strict=True)
        ]
    seeds = [row.seed for row in rows if row.seed is not None]
    found = batch.expected(arm, prompts, answers, max_new_tokens, temperature, seeds)
    if found is None:  # it was run as it is
        return rows
    return [
        replace(row, **counted(each), how=each.how) for row, each in zip(rows, found, strict=True)
    ]
