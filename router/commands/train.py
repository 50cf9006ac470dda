"""`draftpick train`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.commands.listing import Listing
from router.commands.options import AsJson

from .max_loss import (
    RISK_CONTROL,
    Confidence,
    InExpectation,
    MaxLoss,
    asked_for,
    risk_control_json,
    risk_control_table,
    risk_control_tables,
)
from .router_options import (
    ChosenArms,
    ChosenLoads,
    ChosenTemperatures,
    Experiment,
    Loops,
    TrackingUri,
)

if TYPE_CHECKING:
    from policies.tracking.run import Task, TrainedRun

TRAIN_HELP = """Train a policy that picks an arm for each query. It is saved only if its gain over
the best fixed arm, measured on queries that it was not trained on, is above zero with 95%
confidence; otherwise the best fixed arm is saved.

\b
Examples:
  draftpick train --rewards rewards --out policy
  draftpick train --rewards rewards --policy knn --register drafter
  draftpick train --rewards rewards --seeds 5 --reward paper --alphas 0,0.5,1
  draftpick train --rewards rewards --features temperature,greedy
  draftpick train --rewards rewards --paper --judge-by modelled
  draftpick train --rewards rewards --max-loss 0.05 --out policy
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application. What it raises (DraftpickError, PolicyError) is the
    application's to print."""
    app.command("train", help=TRAIN_HELP, cls=Listing)(train)


def train(
    context: typer.Context,
    rewards: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that `draftpick collect --out DIR` wrote.")
    ],
    policy: Annotated[
        str,
        typer.Option(help="How to learn: auto (compares several), {policies.POLICIES}."),
    ] = "auto",
    paper: Annotated[
        bool, typer.Option("--paper", help="Train as the paper does: REINFORCE, unguarded.")
    ] = False,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Save the best fixed arm unless the policy is better with 95% confidence. "
            "--no-guard always saves the policy named by --policy.",
        ),
    ] = True,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="Also train on an eighth, a quarter and a half of the queries."
        ),
    ] = False,
    leave_task_out: Annotated[
        bool,
        typer.Option(
            "--leave-task-out", help="Also evaluate on each task after training without it."
        ),
    ] = False,
    leave_arm_out: Annotated[
        bool,
        typer.Option(
            "--leave-arm-out",
            help="Also evaluate without each arm, removed before and after training.",
        ),
    ] = False,
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled, or measured for "
            "endpoints; with --paper: paper."
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="Weight of similarity against cost in the reward, from 0 to 1."),
    ] = 0.5,
    alphas: Annotated[
        str | None,
        typer.Option(metavar="A,A", help="Train one policy for each of these weights: 0,0.5,1."),
    ] = None,
    max_loss: MaxLoss = None,
    confidence: Confidence = None,
    in_expectation: InExpectation = False,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What embeds the queries, as in `draftpick collect`. Default: the collection's "
            "own embedder. Missing embeddings are computed once and stored there.",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|none",
            help="Features that the policy also reads: {collect.FEATURES}, or none. Default: all "
            "that vary in the collection.",
        ),
    ] = None,
    arms: ChosenArms = None,
    temperatures: ChosenTemperatures = None,
    at_once: ChosenLoads = None,
    loops: Loops = "all",
    train_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train on N queries, drawn by --seed."),
    ] = None,
    judge_by: Annotated[
        str | None,
        typer.Option(
            metavar="REWARD",
            help="Also report another reward of the same collection on the held-out queries.",
        ),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="Share of each task's queries held out for evaluation. Default: 0 with the guard, "
            "which uses folds; 0.2 with --judge-by or --no-guard."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the split and of training.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Train N times, with --seed and the seeds after it."),
    ] = 1,
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Another option of the policy, such as --set k=5."
        ),
    ] = None,
    experiment: Experiment = "draftpick",
    tracking_uri: TrackingUri = None,
    register: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Register the model as models:/NAME@challenger, and as @champion if there is none "
            "(see `draftpick promote`).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Policy folder. Default: mlruns/policies/<run id>."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from collect.rewards import DEFAULT
    from collect.store.collection import Collection
    from collect.table import read_rewards
    from collect.table_options import TableOptions
    from policies import PolicyError, report
    from policies.learners.reinforce import PAPER
    from policies.mlflow_store import shown
    from policies.online.policy import ALGORITHMS
    from policies.risk_control.policy import RiskControlPolicy
    from policies.risk_control.report import losses_and_rewards
    from policies.selection.curves import require_enough
    from policies.selection.guard import check_policy
    from policies.selection.subsample import subsample
    from policies.tracking.run import HELD_OUT, Task, train_task
    from policies.tracking.seeds import sweep_run
    from router.commands.options import at_once_in, names_in, temperatures_in

    from ..mlflow_model.form import TextForm
    from .second_reward import judged_json, judged_rows, judged_tables
    from .train_sweep import groups_of, progress, tell, weights_in
    from .train_tables import further, remarks, run_json, run_tables

    chosen = _policy_options(options or [])
    named = policy if _given(context, "policy") else None
    controlled = asked_for(max_loss, confidence, in_expectation, named)
    if controlled is not None:
        policy = RISK_CONTROL
    chosen |= {k: v for k, v in (("epochs", epochs), ("lr", lr)) if v is not None}
    if paper:
        if controlled is not None:
            raise PolicyError("--paper has no risk control; leave --max-loss out")
        if policy not in ("auto", "reinforce"):
            raise PolicyError(f"--paper is REINFORCE; leave --policy {policy} out")
        policy, guard, chosen = "reinforce", False, PAPER | chosen
        features = features or "none"
        reward = reward or "paper"
    if alphas is not None and _given(context, "alpha"):
        raise PolicyError("give either --alpha or --alphas")
    weights = [alpha] if alphas is None else weights_in(alphas, reward or DEFAULT)
    several = seeds > 1 or alphas is not None
    if several and (curve or leave_task_out or leave_arm_out):
        raise PolicyError("--curve and --leave-... are of one run; leave --seeds and --alphas out")
    if controlled is not None and (judge_by is not None or train_size is not None):
        raise PolicyError("--max-loss takes neither --judge-by nor --train-size")
    if several and judge_by is not None:
        raise PolicyError("--judge-by is of one run; leave --seeds and --alphas out")
    check_policy(policy, chosen)  # a wrong name should show before the rewards are read
    if policy in ALGORITHMS:  # these watch themselves while they serve
        guard = False

    read_at = None if temperatures is None else temperatures_in(temperatures)
    loads = None if at_once is None else at_once_in(at_once)
    if controlled is not None:
        if loads not in (None, (1,)):
            raise PolicyError("risk control is about answers, not load; leave --at-once out")
        loads = (1,)
    asked_rows = TableOptions(
        reward,
        weights[0],
        names_in(arms) or None,
        embedder=embedder,
        temperatures=read_at,
        at_once=loads,
        features=[] if features == "none" else names_in(features) or None,
        loops=loops,
    )
    collection = Collection.open(rewards)
    manifest = collection.manifest
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), None)
    tables = {
        weight: read_rewards(collection, replace(asked_rows, alpha=weight)) for weight in weights
    }

    def make(
        weight: float, seed: int, out: Path | None, register: str | None, run_name: str
    ) -> Task:
        table, held = tables[weight][0], None
        settings, share, guards = dict(chosen), validation_share, guard
        if controlled is not None:
            table, lossless = risk_control_table(table, manifest.arms)
            settings |= controlled | {"lossless": lossless}
            table, held = table.split(HELD_OUT if share is None else share, seed)
            share, guards = 0.0, False  # the calibration is the guard
        elif judge_by is not None or train_size is not None:
            if share is None:
                share = HELD_OUT if judge_by is not None or not guard else 0.0
            table, held = table.split(share, seed)
            if train_size is not None:
                table = subsample(table, train_size, seed)
        return Task(
            table,
            held,
            policy=policy,
            options=settings,
            guard=guards,
            plain=plain if plain in table.arms else None,
            seed=seed,
            held_out=share,
            out=out,
            run_name=run_name,
            register=register,
            params={
                "alpha": weight,
                "rewards": str(rewards),
                "validation_share": share,
                "arms": ",".join(table.arms),
                "features": ",".join(table.feature_names) or "none",
                "loops": loops,
                "train_size": train_size,
                "judge_by": judge_by,
            },
            form=TextForm.of(manifest),
        )

    left_out = tables[weights[0]][1]
    if several:
        groups = groups_of(make, weights, range(seed, seed + seeds), out, register)
        with progress() as show:
            done = sweep_run(
                groups,
                tracking_uri=tracking_uri,
                experiment=experiment,
                run_name=f"{policy}, {len(weights) * seeds} runs",
                params={"seeds": seeds, "alphas": ",".join(f"{one:g}" for one in weights)},
                on_progress=show,
            )
        tell(done, str(left_out), as_json)
        return
    asked = make(weights[0], seed, out, register, policy)
    table, held = asked.table, asked.validation
    judge = None
    if judge_by is not None:
        judge = judged_rows(collection, judge_by, asked_rows, table, held)
    if curve or leave_task_out or leave_arm_out:
        require_enough(table)
    run = train_task(asked, tracking_uri=tracking_uri, experiment=experiment)
    more = further(table, run, policy, asked.options, seed, curve, leave_task_out, leave_arm_out)
    made = run.fitted.policy
    judged = None if judge is None else report(made, judge, seed=seed)
    rows = (
        losses_and_rewards(made, held or table, seed=seed)
        if isinstance(made, RiskControlPolicy)
        else []
    )
    if as_json:
        found = run_json(run, more) | {"features": list(table.feature_names)}
        if isinstance(made, RiskControlPolicy):
            found["guarantee"] = risk_control_json(made, rows)
        if judged is not None and judge is not None:
            found["judged_by"] = judged_json(judged, judge.reward_name)
        typer.echo(json.dumps(found))
        return
    from rich.console import Console

    from decoders.common.terminal import PIPE

    console = Console(width=None if sys.stdout.isatty() else PIPE)
    if isinstance(made, RiskControlPolicy):
        for part in risk_control_tables(rows, "held-out" if held else "training", console.width):
            console.print(part)
        typer.echo(str(made.guarantee))
    else:
        for part in run_tables(run, more, console.width):
            console.print(part)
        if judged is not None and judge is not None:
            for part in judged_tables(judged, judge.reward_name, console.width):
                console.print(part)
        for sentence in remarks(run):
            typer.echo(sentence)
    typer.echo(
        f"Reads:      {', '.join(['the query', *table.feature_names])}\n"
        + (f"Left out:   {left_out}\n" if str(left_out) else "")
        + f"Policy:     {run.folder}\n"
        f"MLflow run: {run.run_id} (experiment {run.experiment})\n"
        + (f"Registered: {run.registered}{_role(run, register)}\n" if run.registered else "")
        + f"Look:       mlflow ui --backend-store-uri {shown(run.tracking_uri)}\n"
        f'Use:        draftpick generate "..." --policy {run.folder}'
    )


def _role(run: TrainedRun, name: str | None) -> str:
    """What the new version is, and how it comes to serve."""
    if run.champion:
        return ", the champion, as there was none"
    return f", the challenger; draftpick promote {name} --rewards HELD_OUT compares it"


def _given(context: typer.Context, option: str) -> bool:
    """Whether the user named it, rather than leave it at its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _policy_options(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are JSON (5, 0.1, true) and otherwise text."""
    from decoders.common.errors import DraftpickError

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
