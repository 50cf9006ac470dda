"""The two sides of a comparison out of logs of decisions, by what was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collect.traffic.clusters import clusters
from decoders.common.errors import DraftpickError

from ..logs.reader import read_log
from ..logs.record import LoggedDecision
from ..logs.writer import log_files
from .compare import Measured

EVERYTHING = "all traffic"
GROUPS = 6  # at most
OF_A_GROUP = 40  # answers on the smaller side
OVERLAP = 0.1  # of the answers since a change, while one server takes over from another


def is_log(path: Path) -> bool:
    return bool(log_files(path)) if path.is_dir() else path.suffix == ".jsonl"


def read_sides(
    before: Path, after: Path | None
) -> tuple[list[LoggedDecision], list[LoggedDecision]]:
    """Two logs, or one before and since its arms or its policy changed last, as by a promotion.
    Raises DraftpickError where they never did, or where both answered in the same time."""
    return _parted(before) if after is None else (_answered(before), _answered(after))


def _parted(folder: Path) -> tuple[list[LoggedDecision], list[LoggedDecision]]:
    rows = _answered(folder)
    chosen = [each for each in rows if each.chosen]
    own = [each.time for each in chosen if _world(each) == _world(chosen[-1])]
    others = [each for each in chosen if _world(each) != _world(chosen[-1])]
    if not others:
        raise DraftpickError(
            f"{folder} was written by one set of arms and one policy; name what it is to be "
            "compared with"
        )
    ended = others[-1]
    began = next(each.time for each in others if _world(each) == _world(ended))
    if sum(began < time < ended.time for time in own) > OVERLAP * len(own):
        raise DraftpickError(
            f"{folder} was written by two sets of arms or two policies at once, or in turn, so "
            "that nothing in it is before the other; write one log by each and name both"
        )
    cut = sum(each.time <= ended.time for each in rows)
    return rows[:cut], rows[cut:]


def measured(
    before: Sequence[LoggedDecision], after: Sequence[LoggedDecision], show_words: bool
) -> tuple[list[Measured], list[Measured]]:
    """Both sides, all traffic as one and, where the texts were kept, every kind of work by itself.

    show_words: whether kinds are called by their words, which stand in what users wrote.
    """
    rows, cut = [*before, *after], len(before)
    made = [_measured(each) for each in rows]
    groups = _groups(rows, min(cut, len(after)), show_words)
    apart = [replace(each, arm=group) for each, group in zip(made, groups, strict=bool(groups))]
    return made[:cut] + apart[:cut], made[cut:] + apart[cut:]


def _world(row: LoggedDecision) -> tuple[str, str | None]:
    return row.arms_fingerprint, row.policy


def _answered(folder: Path) -> list[LoggedDecision]:
    """Answers in the order in which they were complete, without those whose arm a client named
    where others were chosen."""
    rows = [each for each in read_log(folder).decisions if each.outcome.error is None]
    if any(each.chosen for each in rows):
        rows = [each for each in rows if each.choice != "forced"]
    return sorted(rows, key=lambda each: each.time)


def _groups(rows: Sequence[LoggedDecision], fewer: int, show_words: bool) -> list[str]:
    """[n], or nothing where texts were not kept or all are of one kind."""
    prompts = [each.text.prompt for each in rows if each.text and each.text.prompt is not None]
    if len(prompts) < len(rows):
        return []
    found = clusters(prompts, min(GROUPS, fewer // OF_A_GROUP))
    names = dict.fromkeys(found)
    if len(names) < 2:
        return []
    called = {name: name if show_words else f"group {at}" for at, name in enumerate(names, 1)}
    return [called[name] for name in found]


def _measured(row: LoggedDecision) -> Measured:
    made = row.outcome
    seconds, drafted, accepted, rounds = (
        math.nan if each is None else float(each)
        for each in (made.decode_s, made.drafted, made.accepted, made.rounds)
    )
    tokens = math.nan if made.new_tokens is None else max(0.0, made.new_tokens - 1.0)
    source = row.id.rsplit("/", 1)[0] if row.group is None else f"group {row.group}"
    sums = tokens, seconds, drafted, accepted, tokens, rounds
    return Measured(EVERYTHING, None, source, sums)
