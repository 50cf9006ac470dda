"""Draws of a whole run: what chance moves, in arms and baseline as in policies.

At a temperature above 0 one draw of every question's answers says little: two policies that take
the same arm then have the very same answers, and their deviation is the clock's alone. So a run is
repeated with other seeds, each with one seed of every policy, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collect.queries import OVERALL
from policies.evaluation.bootstrap import CONFIDENCE, resampled_sums
from policies.records import Float64
from router.specbench.candidates import over_seeds
from router.specbench.records import BASELINE, Answer, Row

from .records import MEAN, Interval, Measured, Walls


def together(draws: Sequence[Sequence[Row]]) -> list[Row]:
    """One row a question, each method's answers of all draws after one another; an error in any of
    them is the row's."""
    by_id = [{row.question_id: row for row in rows} for rows in draws]
    return [
        replace(row, answers={m: _joined([d[row.question_id].answers[m] for d in by_id])
                              for m in row.answers})
        for row in draws[0]
    ]  # fmt: skip


def _joined(answers: Sequence[Answer]) -> Answer:
    error = next((one.error for one in answers if one.error is not None), None)
    known = [one.others for one in answers if one.others is not None]
    turns = tuple(turn for one in answers for turn in one.turns)
    return Answer(turns, error, max(known, default=None))


def spread(pooled: dict[str, Any], draws: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of every method, as `over_seeds`: means and deviations over draws, and the interval over
    questions of the pooled answers. pooled, draws: summaries."""
    tasks = list(pooled["tasks"])
    whole = {**pooled["arms"], **pooled.get("candidates", {})}
    each = [{**one["arms"], **one.get("candidates", {})} for one in draws]
    intervals = {
        method: {
            task: None if cells[task] is None else cells[task]["ci95"] for task in (OVERALL, *tasks)
        }
        for method, cells in whole.items()
    }
    cells = {f"{method}#{i}": one[method] for i, one in enumerate(each) for method in whole}
    groups = {method: [f"{method}#{i}" for i in range(len(each))] for method in whole}
    return over_seeds(cells, intervals, groups, tasks)


def walls_of(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> Walls:
    """method or group -> task -> [questions, 5]: a number of the question, then tokens and seconds,
    its own and the baseline's; what any of a group's failed on is left out."""
    own = {method: (method,) for row in rows for method in row.answers}
    found: dict[str, dict[str, Float64]] = {}
    for name, methods in {**own, **groups}.items():
        table: dict[str, list[tuple[float, ...]]] = {}
        for number, row in enumerate(rows):
            plain, ours = row.answers[BASELINE], [row.answers[method] for method in methods]
            if any(one.error is not None for one in (*ours, plain)):
                continue
            sums = (sum(one.tokens for one in ours), sum(one.wall_s for one in ours))
            table.setdefault(row.task, []).append((number, *sums, plain.tokens, plain.wall_s))
        found[name] = {task: np.array(each, dtype=np.float64) for task, each in table.items()}
    return found


def margin(
    found: Measured, run: str, ours: str, theirs: str | None, task: str, share: float = 1.0
) -> Interval:
    """Bounds of our speed-up less that share of theirs (None: of plain decoding's, 1), each with
    95% confidence; questions are resampled within tasks, the same for both sides.

    task: MEAN for the plain mean over tasks. Raises KeyError where something was not measured.
    """
    walls = found.walls[run]
    tasks = list(walls[ours]) if task == MEAN else [task]
    drawn = []
    for number, name in enumerate(tasks):
        mine, other = walls[ours][name], None if theirs is None else walls[theirs][name]
        if other is not None:
            _, first, second = np.intersect1d(mine[:, 0], other[:, 0], return_indices=True)
            mine, other = mine[first], other[second]
        columns = mine[:, 1:] if other is None else np.hstack([mine[:, 1:], other[:, 1:]])
        sums = resampled_sums(columns, number)
        against = 1.0 if other is None else speedups(sums[:, 4:])
        drawn.append(speedups(sums[:, :4]) - share * against)
    tail = 1 - CONFIDENCE
    low, high = np.quantile(np.mean(drawn, axis=0), [tail, 1 - tail])
    return float(low), float(high)


def speedups(sums: Float64) -> Float64:
    """[B, 4], tokens and seconds of both sides, to [B]."""
    return np.asarray(sums[:, 0] * sums[:, 3] / (sums[:, 1] * sums[:, 2]))


def drawn_above(found: Measured, run: str, dynamic: str, arms: Sequence[str]) -> list[str]:
    """Tasks on which a policy that draws its arm is above all of its arms, and not with confidence:
    what chance gave it."""
    return [
        task
        for task in found.walls[run][dynamic]
        if all(found.value(run, dynamic, task) > found.value(run, arm, task) for arm in arms)
        and min(margin(found, run, dynamic, arm, task)[0] for arm in arms) <= 0
    ]
