"""`draftpick train`: what it prints; heavy imports wait until the command runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from decoders.common.secrets import masked
from decoders.common.terminal import show

from ...tabulated import Tabulated, cell, show_tables
from ..evaluate import values_json, values_table
from ..options import AsJson
from .plan import TrainOptions, plan

if TYPE_CHECKING:
    from policies.tracking.run import TrainedRun

    from .run import TrainOutcome

JUDGED = {"validation": "the held-out", "train": "the training", "folds": "all"}


def train(options: TrainOptions, as_json: AsJson = False) -> None:
    """Train a policy that picks an arm for each query. It is saved only if its gain over the best
    fixed arm, measured on queries that it was not trained on, is above zero with 95% confidence;
    otherwise the best fixed arm is saved.

    \b
    Examples:
      draftpick train --rewards rewards --out policy
      draftpick train --rewards rewards --policy knn --register drafter
      draftpick train --rewards rewards --features temperature,greedy
      draftpick train --rewards rewards --paper --judge-by modelled
      draftpick train --rewards rewards --max-loss 0.05 --out policy
    """
    from .run import run

    outcome = run(plan(options))
    if as_json:
        typer.echo(json.dumps(to_json(outcome)))
    else:
        print_outcome(outcome)


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
    run, promise = outcome.run, outcome.promise
    if promise is not None:
        judged = "held-out" if outcome.held_out else "training"
        show(lambda width: promise.tables(judged, width))
        typer.echo(str(promise))
    else:
        made = run_tables(run)
        if outcome.judged is not None:
            title = f"The same policy judged by {outcome.judged_by}"
            made.append(values_table(title, outcome.judged))
        show_tables(made)
        for sentence in remarks(run):
            typer.echo(sentence)
    for sentence in outcome.cautions:
        typer.echo(f"Note: {sentence}.")
    promote = f"draftpick promote {outcome.registered_as} --rewards HELD_OUT"
    role = f"the challenger; {promote} compares it"
    if run.champion:
        role = "the champion, as there was none"
    typer.echo(
        f"Reads:      {', '.join(['the query', *outcome.features])}\n"
        + (f"Left out:   {outcome.left_out}\n" if outcome.left_out else "")
        + f"Policy:     {run.folder}\n"
        f"MLflow run: {run.run_id} (experiment {run.experiment})\n"
        + (f"Registered: {run.registered}, {role}\n" if run.registered else "")
        + f"Look:       mlflow ui --backend-store-uri {masked(run.tracking_uri)}\n"
        f'Use:        draftpick generate "..." --policy {run.folder}'
    )


def run_tables(run: TrainedRun) -> list[Tabulated]:
    """The guard's candidates, and the policy next to what it has to beat, with its regret."""
    left = run.regret
    counted = str(left.queries)
    more = [["oracle - policy (regret)", f"{left.mean:.4f}", "", counted]]
    if left.gap_closed is not None:
        more.append(["gap to the oracle closed", f"{left.gap_closed:.1%}", "", counted])
    if left.worse_than_plain is not None:
        more.append(["worse than plain decoding", f"{left.worse_than_plain:.1%}", "", counted])
    title = f"Mean reward on {JUDGED[run.on]} queries"
    return [*_candidates(run), values_table(title, run.evaluation, more)]


def _candidates(run: TrainedRun) -> list[Tabulated]:
    guarded = run.guarded
    if guarded is None or not guarded.tried:
        return []
    rows = []
    for one in guarded.tried:
        name = f"**{one.name}**" if one.name == guarded.saved else one.name
        percent = "-" if one.percent is None else f"{one.percent:.1f}%"
        bounded = math.isfinite(one.gain.low)
        bounds = f"{one.gain.low:.4f} .. {one.gain.high:.4f}" if bounded else "too few"
        rows.append([name, f"{one.gain.mean:.4f}", percent, bounds, cell(one.gain.needed, ",")])
    title = f"Gain over the best fixed arm ({guarded.best_fixed}), on queries not trained on"
    return [Tabulated(title, ["candidate", "gain", "gain", "bounds", "queries needed"], rows)]


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
        "evaluated_on": run.on,
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
