"""What `draftpick train` prints: tables, JSON, and where things are."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from decoders.common.secrets import masked
from decoders.common.terminal import show, tables

from ..evaluate import values_json, values_tables

if TYPE_CHECKING:
    from rich.table import Table

    from policies.evaluation.bounds import Gain
    from policies.tracking.run import TrainedRun

    from .run import TrainOutcome

JUDGED = {"validation": "the held-out", "train": "the training", "folds": "all"}


def to_json(outcome: TrainOutcome) -> dict[str, Any]:
    found = run_json(outcome.run)
    found |= {"features": list(outcome.features), "cautions": outcome.cautions}
    if outcome.promise is not None:
        found["guarantee"] = outcome.promise.as_json()
    if outcome.judged is not None:
        found["judged_by"] = {"reward": outcome.judged_by, **values_json(outcome.judged)}
    return found


def print_outcome(outcome: TrainOutcome) -> None:
    """Tables for the width of standard output, then where things are."""
    show(lambda width: _tables(outcome, width))
    run = outcome.run
    if outcome.promise is not None:
        typer.echo(str(outcome.promise))
    else:
        for sentence in remarks(run):
            typer.echo(sentence)
    for sentence in outcome.cautions:
        typer.echo(f"Note: {sentence}.")
    role = f"{run.registered}{_role(run, outcome.registered_as)}"
    typer.echo(
        f"Reads:      {', '.join(['the query', *outcome.features])}\n"
        + (f"Left out:   {outcome.left_out}\n" if outcome.left_out else "")
        + f"Policy:     {run.folder}\n"
        f"MLflow run: {run.run_id} (experiment {run.experiment})\n"
        + (f"Registered: {role}\n" if run.registered else "")
        + f"Look:       mlflow ui --backend-store-uri {masked(run.tracking_uri)}\n"
        f'Use:        draftpick generate "..." --policy {run.folder}'
    )


def _tables(outcome: TrainOutcome, width: int) -> list[Table]:
    if outcome.promise is not None:
        return outcome.promise.tables("held-out" if outcome.held_out else "training", width)
    found = run_tables(outcome.run, width)
    if outcome.judged is not None:
        title = f"The same policy judged by {outcome.judged_by}"
        found += values_tables(title, outcome.judged, width)
    return found


def _role(run: TrainedRun, name: str | None) -> str:
    """What the new version is, and how it comes to serve."""
    if run.champion:
        return ", the champion, as there was none"
    return f", the challenger; draftpick promote {name} --rewards HELD_OUT compares it"


def run_tables(run: TrainedRun, width: int) -> list[Table]:
    """The guard's candidates, and the policy next to what it has to beat, with its regret."""
    left = run.regret
    counted = str(left.queries)
    more = [["oracle - policy (regret)", f"{left.mean:.4f}", "", counted]]
    if left.gap_closed is not None:
        more.append(["gap to the oracle closed", f"{left.gap_closed:.1%}", "", counted])
    if left.worse_than_plain is not None:
        more.append(["worse than plain decoding", f"{left.worse_than_plain:.1%}", "", counted])
    title = f"Mean reward on {JUDGED[run.evaluated_on]} queries"
    return [*_candidates(run, width), *values_tables(title, run.evaluation, width, more)]


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


def run_json(run: TrainedRun) -> dict[str, Any]:
    """JSON-ready; `guard` is null where the run was unguarded."""
    guarded = run.guarded
    return {
        "run_id": run.run_id,
        "experiment": run.experiment,
        "tracking_uri": masked(run.tracking_uri),
        "policy": str(run.folder),
        "policy_uri": run.policy_uri,
        "registered": run.registered,
        "evaluated_on": run.evaluated_on,
        **values_json(run.evaluation),
        "regret": asdict(run.regret),
        "optimistic": run.evaluation.optimistic,
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
