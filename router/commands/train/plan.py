"""What `draftpick train` is asked to do: its options, and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.common.text import from_json

from ..options import names_in
from ..router_options import TrackingUri, table_options
from ..with_records import with_records
from .max_loss import RISK_CONTROL, Confidence, InExpectation, MaxLoss, asked_for

AUTO = "auto"


@dataclass(frozen=True)
class TrainPlan:
    """A training run, before anything is read.

    rewards: folder of the collection.
    table: how it is read.
    seed: of the split and of training.
    policy, settings: as of `policies.fit`, or "auto".
    guard: whether the best fixed arm is saved unless the policy is better with 95% confidence.
    risk: further settings of the policy under risk control, None for other policies.
    validation_share: of the queries, held out; None where the rest of the plan decides.
    train_size: how many queries are learnt from, None for all.
    judge_by: another reward to report.
    register: name of the registered model, None for none.
    out: policy folder, None for one named by the run.
    """

    rewards: Path
    table: TableOptions
    seed: int
    policy: str
    settings: Mapping[str, Any]
    guard: bool
    risk: Mapping[str, Any] | None
    validation_share: float | None
    train_size: int | None
    judge_by: str | None
    experiment: str
    tracking_uri: str | None
    register: str | None
    out: Path | None


@with_records(table=table_options)
def plan(
    *,
    rewards: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that `draftpick collect --out DIR` wrote.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="How to learn: auto (compares several; the default), {policies.POLICIES}."
        ),
    ] = None,
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
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled, or measured for "
            "endpoints; with --paper: paper."
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Weight of similarity against cost in the reward, from 0 to 1. Default: 0.5."
        ),
    ] = None,
    max_loss: MaxLoss = None,
    confidence: Confidence = None,
    in_expectation: InExpectation = False,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|none",
            help="Features that the policy also reads: {collect.FEATURES}, or none. Default: all "
            "that vary in the collection.",
        ),
    ] = None,
    table: TableOptions,
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
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Another option of the policy, such as --set k=5."
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment to log into.")] = "draftpick",
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
) -> TrainPlan:
    """The plan of the command's options; reads no file and prints nothing.

    Raises DraftpickError and PolicyError for options that do not go together, unknown names and
    numbers out of range.
    """
    from policies import PolicyError
    from policies.fitting import OWN_GUARDS
    from policies.learners.reinforce import PAPER
    from policies.selection.guard import check_policy

    chosen = _settings(settings or ())
    chosen |= {name: value for name, value in (("epochs", epochs), ("lr", lr)) if value is not None}
    risk = asked_for(max_loss, confidence, in_expectation, policy)
    name = policy or AUTO if risk is None else RISK_CONTROL
    if paper:
        if risk is not None:
            raise PolicyError("--paper has no risk control; leave --max-loss out")
        if name not in (AUTO, "reinforce"):
            raise PolicyError(f"--paper is REINFORCE; leave --policy {name} out")
        name, guard, chosen = "reinforce", False, PAPER | chosen
        features = features or "none"
        reward = reward or "paper"
    if risk is not None and (judge_by is not None or train_size is not None):
        raise PolicyError("--max-loss takes neither --judge-by nor --train-size")
    if validation_share is not None and not 0 <= validation_share < 1:
        raise PolicyError(f"--validation-share must be from 0 to below 1, not {validation_share:g}")
    check_policy(name, chosen)
    if risk is not None:
        OWN_GUARDS[name].check(risk)
        if table.at_once not in (None, (1,)):
            raise PolicyError("risk control is about answers, not load; leave --at-once out")
        table = replace(table, at_once=(1,))
    return TrainPlan(
        rewards=rewards,
        table=replace(
            table,
            reward=reward,
            alpha=TableOptions.alpha if alpha is None else alpha,
            features=() if features == "none" else tuple(names_in(features)) or None,
        ),
        seed=seed,
        policy=name,
        settings=chosen,
        guard=guard and name not in OWN_GUARDS,
        risk=risk,
        validation_share=validation_share,
        train_size=train_size,
        judge_by=judge_by,
        experiment=experiment,
        tracking_uri=tracking_uri,
        register=register,
        out=out,
    )


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are JSON (5, 0.1, true) and otherwise text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise DraftpickError(f"--set takes NAME=VALUE, for instance --set k=5, not {pair!r}")
        try:
            found[name] = from_json(value)
        except ValueError:
            found[name] = value
    return found
