"""What `draftpick train` prints of an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from decoders.common.secrets import masked
from decoders.common.terminal import show

from .run import TrainOutcome
from .second_reward import judged_json, judged_tables
from .views import remarks, run_json, run_tables

if TYPE_CHECKING:
    from rich.table import Table

    from policies.tracking.run import TrainedRun


def to_json(outcome: TrainOutcome) -> dict[str, Any]:
    found = run_json(outcome.run)
    found |= {"features": list(outcome.features), "cautions": outcome.cautions}
    if outcome.promise is not None:
        found["guarantee"] = outcome.promise.as_json()
    if outcome.judged is not None:
        found["judged_by"] = judged_json(outcome.judged, outcome.judged_by)
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
        found += judged_tables(outcome.judged, outcome.judged_by, width)
    return found


def _role(run: TrainedRun, name: str | None) -> str:
    """What the new version is, and how it comes to serve."""
    if run.champion:
        return ", the champion, as there was none"
    return f", the challenger; draftpick promote {name} --rewards HELD_OUT compares it"
