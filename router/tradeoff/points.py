"""What one arm did on a set of questions, as a point: how long it took, how good it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collect.queries import OVERALL, ordered

from ..specbench.metrics import BOOTSTRAP_SAMPLES, Cell, Pair, bootstrap, cell
from ..specbench.quality import judged_by, likeness, score
from ..specbench.records import BASELINE, Row

AGREEMENT = "agreement"


@dataclass(frozen=True)
class Point:
    """An arm on a task, or on all questions ("overall").

    latency: its wall seconds over those of the target alone on the same questions, prefill
        included; latency_ci95 its bootstrap interval over questions.
    quality: by measure, 0 to 1: agreement is the ROUGE-L likeness to the target's own greedy
        answer, the others compare with references and are there where the task has such.
    cell: all else that was measured.
    """

    arm: str
    task: str
    latency: float
    latency_ci95: tuple[float, float]
    quality: dict[str, float]
    cell: Cell


def points_of(
    rows: Sequence[Row],
    greedy_answers: Mapping[str, str],
    *,
    greedy: bool,
    eos_ids: Sequence[int] = (),
    seed: int = 0,
    samples: int = BOOTSTRAP_SAMPLES,
) -> list[Point]:
    """Every arm's points: overall, then the tasks that were asked. An arm has none where each of
    its answers failed.

    greedy_answers: the target's first-turn answer at temperature 0, by question id; likeness is
        judged where there is one.
    """
    arms = list(dict.fromkeys(arm for row in rows for arm in row.answers))
    tasks = ordered(row.task for row in rows)
    made = []
    for arm in arms:
        for task in (OVERALL, *tasks):
            asked = [
                row
                for row in rows
                if task in (OVERALL, row.task) and _answered(row, arm) and _answered(row, BASELINE)
            ]
            pairs = [_pair(row, arm) for row in asked]
            figures = cell(pairs, greedy=greedy, eos_ids=eos_ids, seed=seed, samples=samples)
            if figures is None:
                continue
            latency, interval = relative_latency(pairs, seed, samples)
            quality = _quality(task, arm, asked, greedy_answers)
            made.append(Point(arm, task, latency, interval, quality, figures))
    return made


def relative_latency(
    pairs: Sequence[Pair], seed: int, samples: int
) -> tuple[float, tuple[float, float]]:
    """Seconds of the method over seconds of the target alone, answer for answer, with a bootstrap
    interval over questions. An answer of another length counts as it is."""
    ours = np.array([pair.method.wall_s for pair in pairs])
    theirs = np.array([pair.baseline.wall_s for pair in pairs])
    ones = np.ones(len(pairs))
    # bootstrap() gives the baseline's seconds over ours where a question counts as one token
    interval = bootstrap(np.stack([ones, ours, ones, theirs], axis=1), seed, samples)
    low, high = interval or (float("nan"), float("nan"))
    return float(ours.sum() / theirs.sum()), (1 / high, 1 / low)


def _quality(
    task: str, arm: str, rows: Sequence[Row], greedy_answers: Mapping[str, str]
) -> dict[str, float]:
    def text(row: Row) -> str:
        return row.answers[arm].turns[0].result.text.strip()

    known = [row for row in rows if row.question_id in greedy_answers]
    found = {}
    if known:
        alike = [likeness(text(row), greedy_answers[row.question_id]) for row in known]
        found[AGREEMENT] = sum(alike) / len(alike)
    judged = [(text(row), row.reference) for row in rows if row.reference]
    if judged and task != OVERALL:
        texts, references = [t for t, _ in judged], [r for _, r in judged]
        for measure in judged_by(task):
            found[measure] = score(measure, texts, references)
    return found


def _answered(row: Row, arm: str) -> bool:
    return arm in row.answers and row.answers[arm].error is None


def _pair(row: Row, arm: str) -> Pair:
    return Pair(row.task, row.reference, row.answers[arm], row.answers[BASELINE])


def first_answers(rows: Sequence[Row]) -> dict[str, str]:
    """The target's first-turn texts by question id, failed answers left out."""
    answers = {row.question_id: row.answers[BASELINE] for row in rows}
    return {
        question_id: answer.turns[0].result.text.strip()
        for question_id, answer in answers.items()
        if answer.error is None
    }
