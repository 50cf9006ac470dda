"""A sweep's part of the summary: what each arm did as a point, and what its curve says.

A point is an arm's latency and quality on a set of questions; a curve joins the points of one
swept method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collect.queries import OVERALL, ordered
from policies.evaluation.bootstrap import RESAMPLES

from .curves import latency_at, quality_within
from .metrics import bootstrap
from .quality import judged_by, score, similarity
from .records import BASELINE, Row
from .sweep import Curve

AGREEMENT = "agreement"
ONE_POINT = 0.01  # "within one point", as BLEU and ROUGE are usually counted


@dataclass(frozen=True)
class Point:
    """An arm on a task, or on all questions ("overall").

    latency: its wall seconds over those of the target alone on the same questions, prefill
        included; latency_ci95 its bootstrap interval over questions.
    quality: by measure, 0 to 1: agreement is the ROUGE-L similarity to the target's own greedy
        answer, the others compare with references and are there where the task has such.
    """

    arm: str
    task: str
    latency: float
    latency_ci95: tuple[float, float]
    quality: dict[str, float]


def sweep_summary(
    curves: Sequence[Curve], rows: Sequence[Row], greedy_answers: Mapping[str, str], seed: int = 0
) -> dict[str, Any]:
    """What summary.json holds under `sweep`.

    A panel is a task and a measure. Its `readings` give for every curve the least latency at the
    target's own quality, the least within one point of it, and the best quality within the
    target's own latency; None where the curve does not get there. Tables and pictures show the
    `main` panels.
    """
    points = points_of(rows, greedy_answers, seed=seed)
    at = {(point.arm, point.task): point for point in points}
    return {
        "curves": [{**asdict(curve), "ordered": curve.ordered} for curve in curves],
        "points": [asdict(point) for point in points],
        "panels": [
            _panel(point.task, measure, target_quality, curves, at)
            for point in points
            if point.arm == BASELINE
            for measure, target_quality in point.quality.items()
        ],
    }


def points_of(
    rows: Sequence[Row],
    greedy_answers: Mapping[str, str],
    *,
    seed: int = 0,
    samples: int = RESAMPLES,
) -> list[Point]:
    """Every arm's points: overall, then the tasks that were asked. An arm has none where each of
    its answers failed.

    greedy_answers: the target's first-turn answer at temperature 0, by question id; similarity is
        judged where there is one.
    """
    arms = list(dict.fromkeys(arm for row in rows for arm in row.answers))
    tasks = ordered(row.task for row in rows)
    made = []
    for arm in arms:
        answered = [row for row in rows if _answered(row, arm) and _answered(row, BASELINE)]
        for task in (OVERALL, *tasks):
            asked = [row for row in answered if task in (OVERALL, row.task)]
            if asked:
                latency, interval = relative_latency(asked, arm, seed, samples)
                quality = _quality(task, arm, asked, greedy_answers)
                made.append(Point(arm, task, latency, interval, quality))
    return made


def relative_latency(
    rows: Sequence[Row], arm: str, seed: int, samples: int
) -> tuple[float, tuple[float, float]]:
    """Seconds of the arm over seconds of the target alone, answer for answer, with a bootstrap
    interval over questions. An answer of another length counts as it is."""
    ours = np.array([row.answers[arm].wall_s for row in rows])
    theirs = np.array([row.answers[BASELINE].wall_s for row in rows])
    ones = np.ones(len(rows))
    # bootstrap() gives the baseline's seconds over ours where a question counts as one token
    interval = bootstrap(np.stack([ones, ours, ones, theirs], axis=1), seed, samples)
    low, high = interval or (float("nan"), float("nan"))
    return float(ours.sum() / theirs.sum()), (1 / high, 1 / low)


def first_answers(rows: Sequence[Row]) -> dict[str, str]:
    """The target's first-turn texts by question id, failed answers left out."""
    return {row.question_id: _text(row, BASELINE) for row in rows if _answered(row, BASELINE)}


def _quality(
    task: str, arm: str, rows: Sequence[Row], greedy_answers: Mapping[str, str]
) -> dict[str, float]:
    known = [row for row in rows if row.question_id in greedy_answers]
    found = {}
    if known:
        agreements = [similarity(_text(row, arm), greedy_answers[row.question_id]) for row in known]
        found[AGREEMENT] = sum(agreements) / len(agreements)
    judged = [(_text(row, arm), row.reference) for row in rows if row.reference]
    if judged and task != OVERALL:
        texts, references = [t for t, _ in judged], [r for _, r in judged]
        for measure in judged_by(task):
            found[measure] = score(measure, texts, references)
    return found


def _panel(
    task: str,
    measure: str,
    target_quality: float,
    curves: Sequence[Curve],
    at: Mapping[tuple[str, str], Point],
) -> dict[str, Any]:
    readings = []
    for curve in curves:
        known = [at[arm, task] for arm in curve.arms if (arm, task) in at]
        line = [(p.latency, p.quality[measure]) for p in known if measure in p.quality]
        best = quality_within(line, 1.0, curve.ordered)
        readings.append(
            {
                "curve": curve.name,
                "latency_at_target_quality": latency_at(line, target_quality, curve.ordered),
                "latency_within_one_point": latency_at(
                    line, target_quality - ONE_POINT, curve.ordered
                ),
                "best_quality": None if best is None else best[1],
                "best_quality_latency": None if best is None else best[0],
            }
        )
    return {
        "task": task,
        "measure": measure,
        "main": measure in ((AGREEMENT,) if task == OVERALL else judged_by(task)[:1]),
        "target_quality": target_quality,
        "readings": readings,
    }


def _answered(row: Row, arm: str) -> bool:
    return arm in row.answers and row.answers[arm].error is None


def _text(row: Row, arm: str) -> str:
    return row.answers[arm].turns[0].result.text.strip()
