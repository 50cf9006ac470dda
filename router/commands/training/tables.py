"""What `draftpick train` prints of a run: tables, and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from policies.evaluation.bounds import Gain
    from policies.tracking.run import TrainedRun

    from .further import Further


JUDGED = {"validation": "the held-out", "train": "the training", "folds": "all"}


def run_tables(run: TrainedRun, more: Further, width: int) -> list[Table]:
    """For a terminal of `width` columns."""
    found = [_values(run, width)]
    if run.guarded is not None and run.guarded.tried:
        found = [_candidates(run, width), *found]
    if more.curve:
        found.append(_curve(more, width))
    if more.left_out:
        found.append(_left_out(more, width))
    if more.without_arm:
        found.append(_without_arm(more, width))
    return [table for parts in found for table in parts]


def _candidates(run: TrainedRun, width: int) -> list[Table]:
    from decoders.common.terminal import tables

    guarded = run.guarded
    assert guarded is not None
    rows = []
    for one in guarded.tried:
        name = f"[bold green]{one.name}[/bold green]" if one.name == guarded.saved else one.name
        percent = "-" if one.percent is None else f"{one.percent:.1f}%"
        needed = "-" if one.gain.needed is None else f"{one.gain.needed:,}"
        rows.append([name, f"{one.gain.mean:.4f}", percent, _between(one.gain), needed])
    title = f"Gain over the best fixed arm ({guarded.best_fixed}), on queries not trained on"
    return tables(title, ["candidate", "gain", "gain", "bounds", "queries needed"], rows, width)


def _values(run: TrainedRun, width: int) -> list[Table]:
    """The policy's rows and the reference rows, with bootstrap intervals, and the regret."""
    from decoders.common.terminal import tables

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


def _curve(more: Further, width: int) -> list[Table]:
    from decoders.common.terminal import tables

    rows = [
        [
            f"{point.queries}",
            f"{point.policy:.4f}",
            f"{point.gain.mean:.4f}",
            _between(point.gain),
        ]
        for point in more.curve
    ]
    title = f"Mean reward by queries learnt from ({more.policy}), on queries not trained on"
    return tables(title, ["queries", "policy", "gain", "bounds"], rows, width)


def _left_out(more: Further, width: int) -> list[Table]:
    from decoders.common.terminal import tables

    rows = [
        [task, f"{gain.queries}", f"{gain.mean:.4f}", _between(gain)]
        for task, gain in more.left_out.items()
    ]
    title = f"Gain over the best fixed arm on a task not trained on ({more.policy})"
    return tables(title, ["task", "queries", "gain", "bounds"], rows, width)


def _without_arm(more: Further, width: int) -> list[Table]:
    from decoders.common.terminal import tables

    rows = [
        [arm, f"{out.taken.mean:.4f}", _between(out.taken), f"{out.retrained.mean:.4f}",
         _between(out.retrained)]
        for arm, out in more.without_arm.items()
    ]  # fmt: skip
    title = f"Gain over the best fixed arm without an arm ({more.policy})"
    columns = ["without", "taken away", "bounds", "trained without", "bounds"]
    return tables(title, columns, rows, width)


def remarks(run: TrainedRun) -> list[str]:
    """The guard's verdict, and what it left out."""
    if run.guarded is None:
        return []
    skipped = [f"Not tried: {name}, as {why}" for name, why in run.guarded.skipped.items()]
    note = [f"Note: {run.guarded.left_out}."] if run.guarded.left_out else []
    return [run.guarded.verdict, *skipped, *note]


def _between(gain: Gain) -> str:
    return f"{gain.low:.4f} .. {gain.high:.4f}"


def run_json(run: TrainedRun, more: Further) -> dict[str, Any]:
    """JSON-ready; `guard` is null where the run was unguarded."""
    from policies.mlflow_store import shown

    rows = [*run.evaluation.rows, run.evaluation.gain]
    guarded = run.guarded
    found: dict[str, Any] = {
        "run_id": run.run_id,
        "experiment": run.experiment,
        "tracking_uri": shown(run.tracking_uri),
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
