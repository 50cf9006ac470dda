"""tradeoff.json: every point, and for each measure what the curves say about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from collect.queries import OVERALL, ordered

from ..specbench.quality import judged_by
from ..specbench.records import BASELINE, Row
from .curves import latency_at, quality_within
from .points import AGREEMENT, Point
from .sweep import Curve

VERSION = 1
ONE_POINT = 0.01  # "within one point", as BLEU and ROUGE are usually counted


def summarise(
    curves: Sequence[Curve], points: Sequence[Point], rows: Sequence[Row], about: dict[str, Any]
) -> dict[str, Any]:
    """about: settings, hardware and versions, passed through. A panel is a task and a measure; its
    `readings` say for every curve the least latency that still gives the target's own quality, or
    one point less, and the best quality within the target's own latency; None where the curve does
    not get there. `main` panels are those that tables and pictures show."""
    at = {(point.arm, point.task): point for point in points}
    tasks = ordered(row.task for row in rows)
    return {
        "version": VERSION,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **about,
        "questions": len(rows),
        "tasks": {task: sum(row.task == task for row in rows) for task in tasks},
        "curves": [{**asdict(curve), "ordered": curve.ordered} for curve in curves],
        "points": [asdict(point) for point in points],
        "panels": [
            _panel(point.task, measure, target_quality, curves, at)
            for point in points
            if point.arm == BASELINE
            for measure, target_quality in point.quality.items()
        ],
        "errors": [
            {"question_id": row.question_id, "arm": arm, "error": answer.error}
            for row in rows
            for arm, answer in row.answers.items()
            if answer.error is not None
        ],
    }


def _panel(
    task: str,
    measure: str,
    target_quality: float,
    curves: Sequence[Curve],
    at: dict[tuple[str, str], Point],
) -> dict[str, Any]:
    main = measure in ((AGREEMENT,) if task == OVERALL else judged_by(task)[:1])
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
        "main": main,
        "target_quality": target_quality,
        "readings": readings,
    }
