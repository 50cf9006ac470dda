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
from policies.evaluation.bootstrap import CONFIDENCE, group_index, group_sums, resampled_sums
from policies.records import Float64
from router.specbench.metrics import bootstrap
from router.specbench.records import BASELINE, Answer, Row

from .records import MEAN, Interval, Measured, Walls

AGGREGATED = (
    "speedup_vs_ar",
    "speedup_mean_over_tasks",
    "decode_speedup_vs_ar",
    "tokens_per_s",
    "acceptance_rate",
    "quality",
)


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


def by_seeds(
    summary: Mapping[str, Any], rows: Sequence[Row], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """As `over_seeds`, of policies whose seeds answered in one run. groups: the methods of each
    policy's seeds."""
    tasks = list(summary["tasks"])
    intervals = {name: _pooled_intervals(rows, methods, tasks) for name, methods in groups.items()}
    return over_seeds(summary["candidates"], intervals, groups, tasks)


def _pooled_intervals(
    rows: Sequence[Row], methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, Interval | None]:
    """task -> the interval over questions of the methods' speed-up, their answers taken together;
    a question that any of them failed on is left out."""
    found = []
    for row in rows:
        ours, plain = [row.answers[method] for method in methods], row.answers[BASELINE]
        if all(answer.error is None for answer in (*ours, plain)):
            tokens, wall_s = sum(a.tokens for a in ours), sum(a.wall_s for a in ours)
            found.append((row, (tokens, wall_s, plain.tokens, plain.wall_s)))

    def interval(task: str) -> Interval | None:
        kept = [(row.source, sums) for row, sums in found if task in (OVERALL, row.task)]
        table = np.array([sums for _, sums in kept], dtype=np.float64).reshape(-1, 4)
        return bootstrap(table, [source for source, _ in kept])

    return {task: interval(task) for task in (OVERALL, *tasks)}


def over_seeds(
    cells: dict[str, dict[str, Any]],
    intervals: Mapping[str, Mapping[str, Interval | None]],
    groups: Mapping[str, Sequence[str]],
    tasks: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """group -> task -> the seeds' mean and deviation of each field of AGGREGATED, and ci95.

    cells: method -> task -> its cell.
    intervals: group -> task -> that of all its seeds' answers, over questions.

    The deviation is the sample's, None of a single seed: what another training would change.
    """
    found: dict[str, dict[str, Any]] = {}
    for group, methods in groups.items():
        found[group] = {
            task: _aggregate([cells[method][task] for method in methods], intervals[group][task])
            for task in (OVERALL, *tasks)
        }
    return found


def _aggregate(
    cells: Sequence[dict[str, Any] | None], ci95: Interval | None
) -> dict[str, Any] | None:
    """None where no seed answered."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    figures: dict[str, Any] = {"seeds": len(known), "ci95": ci95}
    for name in AGGREGATED:
        values = [cell[name] for cell in known if cell[name] is not None]
        figures[name] = float(np.mean(values)) if values else None
        figures[f"{name}_deviation"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return figures


def walls_of(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> Walls:
    """method or group -> task -> [questions, 6]: a number of the question, one of its source, then
    tokens and seconds, its own and the baseline's; what any of a group's failed on is left out."""
    sources = group_index([row.source for row in rows])
    own = {method: (method,) for row in rows for method in row.answers}
    found: dict[str, dict[str, Float64]] = {}
    for name, methods in {**own, **groups}.items():
        table: dict[str, list[tuple[float, ...]]] = {}
        for number, row in enumerate(rows):
            plain, ours = row.answers[BASELINE], [row.answers[method] for method in methods]
            if any(one.error is not None for one in (*ours, plain)):
                continue
            sums = (sum(one.tokens for one in ours), sum(one.wall_s for one in ours))
            line = (number, sources[number], *sums, plain.tokens, plain.wall_s)
            table.setdefault(row.task, []).append(line)
        found[name] = {task: np.array(each, dtype=np.float64) for task, each in table.items()}
    return found


def margin(
    found: Measured, run: str, ours: str, theirs: str | None, task: str, share: float = 1.0
) -> Interval:
    """Bounds of our speed-up less that share of theirs (None: of plain decoding's, 1), each with
    95% confidence; sources of questions are resampled within tasks, the same for both sides.

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
        columns = mine[:, 2:] if other is None else np.hstack([mine[:, 2:], other[:, 2:]])
        sums = resampled_sums(group_sums(columns, group_index(mine[:, 1].tolist())), number)
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
