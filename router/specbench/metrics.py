"""One method against the baseline on one set of questions: every figure of a table's cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from collect.sweeps.repetition import is_repetitive
from policies.evaluation.bootstrap import group_index, group_sums, interval, ratio, resampled_sums

from .quality import measure_of, quality
from .records import Answer, Turn


@dataclass(frozen=True)
class Pair:
    """A question's answer by a method, and by the baseline. source: as `Row.source`."""

    task: str
    source: str
    reference: str | None
    method: Answer
    baseline: Answer


@dataclass(frozen=True)
class Cell:
    """A method on a task (or overall). Sums run over the questions that both sides answered.

    questions, tokens: how many; tokens count the end-of-sequence token.
    tokens_per_s: over all wall seconds, the prefill and the choice of the arm included.
    speedup_vs_ar: ratio of tokens_per_s to the baseline's on the same questions; ci95 its bootstrap
        interval over sources of questions, None where they are all of one. Long answers weigh more
        in it.
    speedup_mean_over_tasks: the plain mean of the tasks' own, as averages in papers' tables usually
        are.
    speedup_mean_over_questions: the plain mean of the questions' own.
    speedup_median: the median of the questions' own, which a stall of the machine does not move.
    decode_*: the same without the prefill (and without the token that it gives).
    speedup_official: Spec-Bench's own formula, which counts the baseline's tokens after
        re-tokenising stripped text.
    mean_accepted: tokens a round, the target's own included.
    acceptance_rate: accepted over drafted.
    target_calls_per_token: prefills included.
    *_share: of all seconds that the engine accounts for.
    policy_share: embedding and policy.
    quality: 0 to 1 by quality_measure, for `overall` the mean over tasks.
    repetitive_share: answers that end in a repeated n-gram.
    speedup_without_repetition: over questions where neither answer is repetitive.
    differs_from_ar: answers whose ids differ from the baseline's on the same prompt, of `compared`
        (None when sampling): for a lossless arm these are near-ties that low precision rounds the
        other way.
    """

    questions: int
    tokens: int
    tokens_per_s: float
    speedup_vs_ar: float | None
    ci95: tuple[float, float] | None
    speedup_mean_over_tasks: float | None
    speedup_mean_over_questions: float | None
    speedup_median: float | None
    decode_tokens_per_s: float
    decode_speedup_vs_ar: float | None
    decode_ci95: tuple[float, float] | None
    speedup_official: float | None
    mean_accepted: float
    acceptance_rate: float
    target_calls_per_token: float
    prefill_share: float
    draft_share: float
    verify_share: float
    other_share: float
    policy_share: float
    quality: float | None
    quality_measure: str | None
    repetitive_share: float
    speedup_without_repetition: float | None
    questions_without_repetition: int
    differs_from_ar: int | None
    compared: int | None


def cell(
    pairs: Sequence[Pair],
    *,
    greedy: bool = True,
    eos_ids: Sequence[int] = (),
    seed: int = 0,
) -> Cell | None:
    """All figures for these pairs; None where no question was answered by both."""
    pairs = [p for p in pairs if p.method.error is None and p.baseline.error is None]
    if not pairs:
        return None
    turns = [turn for pair in pairs for turn in pair.method.turns]
    results = [turn.result for turn in turns]
    ours, theirs = [p.method for p in pairs], [p.baseline for p in pairs]
    calm = [p for p in pairs if not any(_repeats(a, eos_ids) for a in (p.method, p.baseline))]
    tokens = sum(a.tokens for a in ours)
    rounds = sum(r.rounds for r in results)
    drafted = sum(r.drafted for r in results)
    shares = time_shares(turns)
    value, measure = _quality(pairs)
    differing, compared = differences(pairs)
    total, decode = speed_table(ours, theirs), speed_table(ours, theirs, DECODING)
    sources = [p.source for p in pairs]
    return Cell(
        questions=len(pairs),
        tokens=tokens,
        tokens_per_s=_rate(tokens, sum(a.wall_s for a in ours)),
        speedup_vs_ar=speedup(total),
        ci95=bootstrap(total, sources, seed),
        speedup_mean_over_tasks=mean_over_tasks(total, [p.task for p in pairs]),
        speedup_mean_over_questions=over_questions(total),
        speedup_median=over_questions(total, np.median),
        decode_tokens_per_s=_rate(sum(a.decoded for a in ours), sum(a.decode_s for a in ours)),
        decode_speedup_vs_ar=speedup(decode),
        decode_ci95=bootstrap(decode, sources, seed),
        speedup_official=official_speedup(ours, theirs),
        mean_accepted=sum(a.decoded for a in ours) / rounds if rounds else 1.0,
        acceptance_rate=_rate(sum(r.accepted for r in results), drafted),
        target_calls_per_token=_rate(sum(r.target_calls for r in results), tokens),
        **{f"{name}_share": share for name, share in shares.items()},
        quality=value,
        quality_measure=measure,
        repetitive_share=_rate(sum(is_repetitive(r.ids, eos_ids) for r in results), len(turns)),
        speedup_without_repetition=speedup(
            speed_table([p.method for p in calm], [p.baseline for p in calm])
        ),
        questions_without_repetition=len(calm),
        differs_from_ar=differing if greedy else None,
        compared=compared if greedy else None,
    )


def speedup(table: np.ndarray) -> float | None:
    """Ratio of two rates. table: [questions, 4], tokens and seconds of each side."""
    found = _ratios(table.sum(axis=0)[None])[0]
    return float(found) if np.isfinite(found) else None


def mean_over_tasks(table: np.ndarray, tasks: Sequence[str]) -> float | None:
    """Mean of each task's `speedup`; tasks that have none are left out. tasks: one per row."""
    names = np.array(tasks)
    each = [speedup(table[names == task]) for task in dict.fromkeys(tasks)]
    known = [found for found in each if found is not None]
    return float(np.mean(known)) if known else None


def over_questions(
    table: np.ndarray, average: Callable[[np.ndarray], Any] = np.mean
) -> float | None:
    """The mean, or another average, of each row's own ratio; rows that have none are left out."""
    ratios = _ratios(table)
    ratios = ratios[np.isfinite(ratios)]
    return float(average(ratios)) if len(ratios) else None


def bootstrap(
    table: np.ndarray, sources: Sequence[str], seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile interval of `speedup`, drawing sources of questions with replacement, each
    with all of its own; None where there is only one. sources: [questions]."""
    sums = group_sums(table, group_index(sources))
    if len(sums) < 2:
        return None
    low, high = interval(_ratios(resampled_sums(sums, seed)))
    return None if np.isnan(low) else (low, high)


def official_speedup(method: Sequence[Answer], baseline: Sequence[Answer]) -> float | None:
    """Spec-Bench's: mean over questions of tokens/s, the baseline's tokens re-tokenised."""
    ours = [_rate(a.tokens, a.wall_s) for a in method]
    theirs = [_rate(sum(t.retokenised for t in a.turns), a.wall_s) for a in baseline]
    if not theirs or sum(theirs) == 0:
        return None
    return float(np.mean(ours) / np.mean(theirs))


def time_shares(turns: Sequence[Turn]) -> dict[str, float]:
    """Shares of the seconds in prefill, draft, verify, other and policy (embedding included)."""
    seconds = {
        "prefill": sum(t.result.prefill_s for t in turns),
        "draft": sum(t.result.draft_s for t in turns),
        "verify": sum(t.result.verify_s for t in turns),
        "other": sum(t.result.other_s for t in turns),
        "policy": sum(t.embed_s + t.policy_s for t in turns),
    }
    whole = sum(seconds.values())
    return {name: _rate(value, whole) for name, value in seconds.items()}


def differences(pairs: Sequence[Pair]) -> tuple[int, int]:
    """How many turns with the same prompt have other ids than the baseline's; of how many."""
    same_prompt = [
        (ours.result.ids, theirs.result.ids)
        for pair in pairs
        for ours, theirs in zip(pair.method.turns, pair.baseline.turns, strict=True)
        if ours.result.prompt_ids == theirs.result.prompt_ids
    ]
    return sum(ours != theirs for ours, theirs in same_prompt), len(same_prompt)


def _quality(pairs: Sequence[Pair]) -> tuple[float | None, str | None]:
    """A task's measure; over several tasks the mean of their values."""
    by_task: dict[str, float] = {}
    for task in dict.fromkeys(pair.task for pair in pairs):
        judged = [p for p in pairs if p.task == task and p.reference and p.method.turns]
        texts = [p.method.turns[0].result.text.strip() for p in judged]
        value = quality(task, texts, [p.reference or "" for p in judged])
        if value is not None:
            by_task[task] = value
    if not by_task:
        return None, None
    single = len({pair.task for pair in pairs}) == 1
    measure = measure_of(next(iter(by_task))) if single else "mean over tasks"
    return sum(by_task.values()) / len(by_task), measure


WHOLE, DECODING = attrgetter("tokens", "wall_s"), attrgetter("decoded", "decode_s")


def speed_table(
    ours: Sequence[Answer], theirs: Sequence[Answer], of: Callable[[Answer], Any] = WHOLE
) -> np.ndarray:
    """[questions, 4] as `speedup` takes it. of: whole answers, or DECODING, without prefills."""
    rows = [(*of(a), *of(b)) for a, b in zip(ours, theirs, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _ratios(sums: np.ndarray) -> np.ndarray:
    """(tokens / seconds) over (tokens / seconds), row by row; nan where a side has none."""
    return ratio(sums[:, 0] * sums[:, 3], sums[:, 1] * sums[:, 2])


def _rate(count: float, of: float) -> float:
    return count / of if of > 0 else 0.0


def _repeats(answer: Answer, eos_ids: Sequence[int]) -> bool:
    return any(is_repetitive(turn.result.ids, eos_ids) for turn in answer.turns)
