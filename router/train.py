"""`draftpick train`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collect.listing import Listing
from collect.options import AsJson

from .options import Experiment, TrackingUri
from .promise import (
    PROMISED,
    SPEED,
    Confidence,
    InExpectation,
    MaxLoss,
    asked_for,
    promise_json,
    promise_tables,
    promised_table,
)

if TYPE_CHECKING:
    from rich.table import Table

    from policies.tracking import TrainedRun

TRAIN_HELP = """Train the policy that picks an arm for each query, from collected rewards.

Some queries are held out; the table at the end gives the mean reward on them of the policy and of
what it has to beat: choosing at random (uniform), always the same arm (fixed), the best such arm,
the best arm for each task, and, out of reach, the best arm for every query (oracle). Everything
about the run is kept in MLflow.

\b
  draftpick train --rewards rewards --out policy
  draftpick train --rewards rewards --policy knn --reward modelled --register drafter
  draftpick train --rewards rewards --embedder sentence    read by a sentence-transformers model
  draftpick train --rewards rewards --max-loss 0.05 --out policy    fast, and nearly lossless
  draftpick generate "Why is the sky blue?" --policy policy
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application. What it raises (DraftpickError, PolicyError) is the
    application's to print."""
    app.command("train", help=TRAIN_HELP, cls=Listing)(train)


def train(
    context: typer.Context,
    rewards: Annotated[
        Path, typer.Option(metavar="DIR", help="What `draftpick collect --out DIR` wrote.")
    ],
    policy: Annotated[
        str,
        typer.Option(help="How to learn: {policies.POLICIES}."),
    ] = "reinforce",
    reward: Annotated[
        str,
        typer.Option(help="What to maximise: {collect.REWARDS}."),
    ] = "paper",
    alpha: Annotated[
        float,
        typer.Option(help="Weight of likeness against cost: 1 = likeness alone, 0 = cost alone."),
    ] = 0.5,
    max_loss: MaxLoss = None,
    confidence: Confidence = None,
    in_expectation: InExpectation = False,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the policy reads of a query, as in `draftpick collect`; default: what the "
            "rewards were collected with. Missing embeddings are computed once, and kept there.",
        ),
    ] = None,
    validation_share: Annotated[
        float, typer.Option(help="Share of every task's queries held out to judge the policy.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split and of training.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Another option of the policy, e.g. --set k=5."
        ),
    ] = None,
    experiment: Experiment = "draftpick",
    tracking_uri: TrackingUri = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also register the model, as models:/NAME@champion."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Policy folder; default: mlruns/policies/<run id>."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from collect.table import reward_table
    from policies import PromisedPolicy, options_of
    from policies.promise_check import kept
    from policies.tracking import train_run

    options_of(policy)  # an unknown policy should show before the rewards are read
    chosen = _policy_options(options or [])
    named = policy if _given(context, "policy") else None
    promised = asked_for(max_loss, confidence, in_expectation, named)
    if promised is not None:
        policy, reward = PROMISED, reward if _given(context, "reward") else SPEED
    chosen |= {k: v for k, v in (("epochs", epochs), ("lr", lr)) if v is not None}
    table = reward_table(rewards, reward, alpha, embedder=embedder)
    if promised is not None:
        table, lossless = promised_table(table, rewards)
        chosen |= promised | {"lossless": lossless}
    table, held = table.split(validation_share, seed)
    run = train_run(
        table,
        held,
        policy=policy,
        options=chosen,
        seed=seed,
        held_out=0.0,  # is held out already
        out=out,
        tracking_uri=tracking_uri,
        experiment=experiment,
        register=register,
        params={
            "alpha": alpha,
            "rewards": str(rewards),
            "validation_share": validation_share,
        },
    )
    made = run.fitted.policy
    rows = kept(made, held or table, seed=seed) if isinstance(made, PromisedPolicy) else []
    if as_json:
        more = {"promise": promise_json(made, rows)} if isinstance(made, PromisedPolicy) else {}
        typer.echo(json.dumps(_run_as_json(run) | more))
        return
    from rich.console import Console

    console = Console()
    if isinstance(made, PromisedPolicy):
        for shown in promise_tables(rows, _judged(run), console.width):
            console.print(shown)
        typer.echo(str(made.promise))
    else:
        console.print(_value_table(run))
    typer.echo(
        f"Policy:     {run.folder}\n"
        f"MLflow run: {run.run_id} (experiment {run.experiment})\n"
        + (f"Registered: {run.registered}\n" if run.registered else "")
        + f"Look:       mlflow ui --backend-store-uri {_shown(run.tracking_uri)}\n"
        f'Use:        draftpick generate "..." --policy {run.folder}'
    )


def _given(context: typer.Context, option: str) -> bool:
    """Whether the user named it, rather than leave it at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _judged(run: TrainedRun) -> str:
    return "held-out" if run.evaluated_on == "validation" else "training"


def _policy_options(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are JSON (5, 0.1, true) and otherwise text."""
    from decoders.errors import DraftpickError

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise DraftpickError(f"--set takes NAME=VALUE, for instance --set k=5, not {pair!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _value_table(run: TrainedRun) -> Table:
    """The policy's rows and the reference rows, with bootstrap intervals."""
    from rich.table import Table

    table = Table(title=f"Mean reward on the {_judged(run)} queries, with its 95 % interval")
    for name in ("choice", "reward", "interval", "queries"):
        table.add_column(name, justify="left" if name == "choice" else "right")
    evaluation = run.evaluation
    for row in [*evaluation.rows, evaluation.gain]:
        name = {
            "greedy": "policy (greedy)",
            "dynamic": "policy (sampled)",
            "best-fixed": f"best fixed ({evaluation.best_fixed})",
        }.get(row.name, row.name)
        if row is evaluation.gain:
            table.add_section()
            name = "policy - best fixed"
        style = "bold green" if row.name == "greedy" else None
        interval = f"{row.low:.4f} .. {row.high:.4f}"
        table.add_row(name, f"{row.mean:.4f}", interval, str(row.queries), style=style)
    return table


def _run_as_json(run: TrainedRun) -> dict[str, Any]:
    rows = [*run.evaluation.rows, run.evaluation.gain]
    return {
        "run_id": run.run_id,
        "experiment": run.experiment,
        "tracking_uri": _shown(run.tracking_uri),
        "policy": str(run.folder),
        "policy_uri": run.policy_uri,
        "registered": run.registered,
        "evaluated_on": run.evaluated_on,
        "best_fixed": run.evaluation.best_fixed,
        "values": {row.name: {"mean": row.mean, "ci95": [row.low, row.high]} for row in rows},
    }


def _shown(uri: str) -> str:
    from policies.mlflow_store import shown

    return shown(uri)
