"""What `draftpick train` prints: tables, JSON, and where things are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from decoders.common.secrets import masked
from decoders.common.terminal import tables

from ..views import plain

if TYPE_CHECKING:
    from rich.table import Table

    from policies.evaluation.bounds import Gain
    from policies.tracking.run import TrainedRun
    from policies.tracking.seeds import Spread, Sweep

    from .further import Further

JUDGED = {"validation": "the held-out", "train": "the training", "folds": "all"}


def run_tables(run: TrainedRun, more: Further, width: int) -> list[Table]:
    """The guard's candidates, the policy next to what it has to beat, and what was asked
    further."""
    made = [*_candidates(run, width), *_values(run, width)]
    over = "Gain over the best fixed arm"
    for title, headings, rows in (
        (
            f"Mean reward by queries learnt from ({more.policy}), on queries not trained on",
            ["queries", "policy", "gain", "bounds"],
            [[str(at.queries), f"{at.policy:.4f}", *_gain(at.gain)] for at in more.curve],
        ),
        (
            f"{over} on a task not trained on ({more.policy})",
            ["task", "queries", "gain", "bounds"],
            [[task, str(gain.queries), *_gain(gain)] for task, gain in more.left_out.items()],
        ),
        (
            f"{over} without an arm ({more.policy})",
            ["without", "taken away", "bounds", "trained without", "bounds"],
            [
                [arm, *_gain(out.taken), *_gain(out.retrained)]
                for arm, out in more.without_arm.items()
            ],
        ),
    ):
        if rows:
            made += tables(title, headings, rows, width)
    return made


def _candidates(run: TrainedRun, width: int) -> list[Table]:
    guarded = run.guarded
    if guarded is None or not guarded.tried:
        return []
    rows = []
    for one in guarded.tried:
        name = f"[bold green]{one.name}[/bold green]" if one.name == guarded.saved else one.name
        percent = "-" if one.percent is None else f"{one.percent:.1f}%"
        needed = "-" if one.gain.needed is None else f"{one.gain.needed:,}"
        mean, bounds = _gain(one.gain)
        rows.append([name, mean, percent, bounds, needed])
    title = f"Gain over the best fixed arm ({guarded.best_fixed}), on queries not trained on"
    return tables(title, ["candidate", "gain", "gain", "bounds", "queries needed"], rows, width)


def _values(run: TrainedRun, width: int) -> list[Table]:
    """The policy's rows and the reference rows, with bootstrap intervals, and the regret."""
    evaluation, left = run.evaluation, run.regret
    rows = []
    for row in [*evaluation.rows, evaluation.gain]:
        name = {
            "greedy": "[bold green]policy (greedy)[/bold green]",
            "dynamic": "policy (sampled)",
            "best-fixed": f"best fixed ({evaluation.best_fixed})",
            evaluation.gain.name: "policy - best fixed",
        }.get(row.name, row.name)
        interval = f"{row.low:.4f} .. {row.high:.4f}"
        rows.append([name, f"{row.mean:.4f}", interval, str(row.queries)])
    counted = str(left.queries)
    rows.append(["oracle - policy (regret)", f"{left.mean:.4f}", "", counted])
    if left.gap_closed is not None:
        rows.append(["gap to the oracle closed", f"{left.gap_closed:.1%}", "", counted])
    if left.worse_than_plain is not None:
        rows.append(["worse than plain decoding", f"{left.worse_than_plain:.1%}", "", counted])
    title = f"Mean reward on {JUDGED[run.evaluated_on]} queries, with its 95 % interval"
    return tables(title, ["choice", "reward", "interval", "queries"], rows, width)


def _gain(gain: Gain) -> list[str]:
    bounded = math.isfinite(gain.low)
    return [f"{gain.mean:.4f}", f"{gain.low:.4f} .. {gain.high:.4f}" if bounded else "too few"]


def remarks(run: TrainedRun) -> list[str]:
    """The guard's verdict, and what it left out."""
    if run.guarded is None:
        return []
    skipped = [f"Not tried: {name}, as {why}" for name, why in run.guarded.skipped.items()]
    note = [f"Note: {run.guarded.left_out}."] if run.guarded.left_out else []
    return [run.guarded.verdict, *skipped, *note]


def run_json(run: TrainedRun, more: Further) -> dict[str, Any]:
    """JSON-ready; `guard` is null where the run was unguarded."""
    rows = [*run.evaluation.rows, run.evaluation.gain]
    guarded = run.guarded
    found: dict[str, Any] = {
        "run_id": run.run_id,
        "experiment": run.experiment,
        "tracking_uri": masked(run.tracking_uri),
        "policy": str(run.folder),
        "policy_uri": run.policy_uri,
        "registered": run.registered,
        "evaluated_on": run.evaluated_on,
        "best_fixed": run.evaluation.best_fixed,
        "values": {row.name: {"mean": row.mean, "ci95": [row.low, row.high]} for row in rows},
        "regret": asdict(run.regret),
        "guard": None
        if guarded is None
        else {
            "saved": guarded.saved,
            "verdict": guarded.verdict,
            "queries": guarded.queries,
            "left_out": guarded.left_out,
            "skipped": guarded.skipped,
            "tried": [
                {"name": one.name, "percent": one.percent, **one.gain.as_json()}
                for one in guarded.tried
            ],
        },
    }
    if more.curve:
        found["curve"] = [asdict(one) | {"gain": one.gain.as_json()} for one in more.curve]
    if more.left_out:
        found["task_left_out"] = {task: gain.as_json() for task, gain in more.left_out.items()}
    if more.without_arm:
        found["arm_left_out"] = {
            arm: {"taken": out.taken.as_json(), "retrained": out.retrained.as_json()}
            for arm, out in more.without_arm.items()
        }
    return found


def sweep_tables(found: Sweep, width: int) -> list[Table]:
    """A row a run, and means with deviations."""
    from policies.tracking.seeds import Spread, rows_of

    rows, means = [], []
    for group in found.groups:
        for row in rows_of(group):
            closed = "-" if row["gap_closed"] is None else f"{row['gap_closed']:.1%}"
            name = f"{group.name}, seed {row['seed']}".removeprefix(", ")
            figures = [f"{row['reward']:.4f}", f"{row['gain']:.4f}", f"{row['gain_percent']:.1f}%"]
            rows.append([name, row["saved"], *figures, closed])
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else "1 seed"
        means.append(
            [
                f"{group.name}, {seeds}".removeprefix(", "),
                _words(group.spreads["value/greedy"]),
                _words(group.spreads["value/gain"]),
                _words(Spread.of(group.percents), "%", 1),
            ]
        )
    heads = ["run", "saved", "reward", "gain", "gain", "gap closed"]
    made = tables("Each run, against its best fixed arm", heads, rows, width)
    title = "Mean over seeds, and standard deviation"
    return made + tables(title, ["runs", "reward", "gain", "gain"], means, width)


def _words(spread: Spread, unit: str = "", digits: int = 4) -> str:
    around = "" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}"
    return f"{spread.mean:.{digits}f}{around}{unit}"


def sweep_json(found: Sweep) -> dict[str, Any]:
    from policies.tracking.seeds import rows_of

    return {
        "run_id": found.run_id,
        "experiment": found.experiment,
        "tracking_uri": masked(found.tracking_uri),
        "policy": str(found.first.folder),
        "registered": found.first.registered,
        "groups": [
            {
                "name": group.name,
                "saved": group.saved,
                "metrics": {
                    key: {"mean": one.mean, "std": one.deviation}
                    for key, one in group.spreads.items()
                },
                "runs": plain(rows_of(group)),
            }
            for group in found.groups
        ],
    }


def where(found: Sweep) -> Sequence[str]:
    """Lines that say where things are."""
    folders = [
        f"Policy:     {group.runs[0].folder}" + (f" ({group.name})" if group.name else "")
        for group in found.groups
    ]
    if any(len(group.runs) > 1 for group in found.groups):
        folders.append("            of the first seed: the best of several would look too good")
    return [
        *folders,
        f"MLflow run: {found.run_id} (experiment {found.experiment}), with a child for each run",
        *([f"Registered: {found.first.registered}"] if found.first.registered else []),
        f"Look:       mlflow ui --backend-store-uri {masked(found.tracking_uri)}",
    ]
