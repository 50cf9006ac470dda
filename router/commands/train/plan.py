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

from ..options import TableRecord, TrackingUri, names_in

AUTO = "auto"
RISK_CONTROL = "risk-control"  # the policy's name


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `draftpick train`."""

    rewards: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that `draftpick collect --out DIR` wrote.")
    ]
    policy: Annotated[
        str | None,
        typer.Option(
            help="How to learn: auto (compares several; the default), {policies.POLICIES}."
        ),
    ] = None
    paper: Annotated[
        bool, typer.Option("--paper", help="Train as the paper does: REINFORCE, unguarded.")
    ] = False
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Save the best fixed arm unless the policy is better with 95% confidence. "
            "--no-guard always saves the policy named by --policy.",
        ),
    ] = True
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled, or measured for "
            "endpoints; with --paper: paper."
        ),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Weight of similarity against cost in the reward, from 0 to 1. Default: 0.5."
        ),
    ] = None
    max_loss: Annotated[
        float | None,
        typer.Option(
            metavar="LOSS",
            help="Also allow lossy arms, if greedy answers lose at most this on average. The loss "
            "is 1 - ROUGE-L to the target's own answer.",
        ),
    ] = None
    confidence: Annotated[
        float | None,
        typer.Option(help="With --max-loss: the confidence of the bound. Default: 0.95."),
    ] = None
    in_expectation: Annotated[
        bool,
        typer.Option(
            "--in-expectation",
            help="With --max-loss: bound the expected loss instead, which needs fewer queries.",
        ),
    ] = False
    features: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|none",
            help="Features that the policy also reads: {collect.FEATURES}, or none. Default: all "
            "that vary in the collection.",
        ),
    ] = None
    table: TableRecord
    train_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train on N queries, drawn by --seed."),
    ] = None
    judge_by: Annotated[
        str | None,
        typer.Option(
            metavar="REWARD",
            help="Also report another reward of the same collection on the held-out queries.",
        ),
    ] = None
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="Share of each task's queries held out for evaluation. Default: 0 with the guard, "
            "which uses folds; 0.2 with --judge-by or --no-guard."
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the split and of training.")] = 0
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Another option of the policy, such as --set k=5."
        ),
    ] = None
    experiment: Annotated[str, typer.Option(help="MLflow experiment to log into.")] = "draftpick"
    tracking_uri: TrackingUri = None
    register: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Register the model as models:/NAME@challenger, and as @champion if there is none "
            "(see `draftpick promote`).",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Policy folder. Default: mlruns/policies/<run id>."),
    ] = None


@dataclass(frozen=True)
class TrainPlan:
    """A training run, before anything is read.

    asked: what the rest follows from.
    table: how the collection is read.
    policy, settings: as of `policies.fit`, or "auto".
    guard: whether the best fixed arm is saved unless the policy is better with 95% confidence.
    risk: further settings of the policy under risk control, None for other policies.
    """

    asked: TrainOptions
    table: TableOptions
    policy: str
    settings: Mapping[str, Any]
    guard: bool
    risk: Mapping[str, Any] | None


def plan(asked: TrainOptions) -> TrainPlan:
    """The plan of the command's options; reads no file and prints nothing.

    Raises DraftpickError and PolicyError for options that do not go together, unknown names and
    numbers out of range.
    """
    from policies import PolicyError
    from policies.fitting import OWN_GUARDS
    from policies.learners.reinforce import PAPER
    from policies.selection.guard import check_policy

    own = {"epochs": asked.epochs, "lr": asked.lr}
    settings = _settings(asked.settings or ())
    settings |= {name: value for name, value in own.items() if value is not None}
    risk = _risk(asked.max_loss, asked.confidence, asked.in_expectation, asked.policy)
    name = asked.policy or AUTO if risk is None else RISK_CONTROL
    if asked.paper:
        if risk is not None:
            raise PolicyError("--paper has no risk control; leave --max-loss out")
        if name not in (AUTO, "reinforce"):
            raise PolicyError(f"--paper is REINFORCE; leave --policy {name} out")
        name, settings = "reinforce", PAPER | settings
        features, reward = asked.features or "none", asked.reward or "paper"
        asked = replace(asked, guard=False, features=features, reward=reward)
    if risk is not None and (asked.judge_by is not None or asked.train_size is not None):
        raise PolicyError("--max-loss takes neither --judge-by nor --train-size")
    share = asked.validation_share
    if share is not None and not 0 <= share < 1:
        raise PolicyError(f"--validation-share must be from 0 to below 1, not {share:g}")
    check_policy(name, settings)
    table = replace(
        asked.table,
        reward=asked.reward,
        alpha=TableOptions.alpha if asked.alpha is None else asked.alpha,
        features=() if asked.features == "none" else tuple(names_in(asked.features)) or None,
    )
    if risk is not None:
        OWN_GUARDS[name].check(risk)
        if table.at_once not in (None, (1,)):
            raise PolicyError("risk control is about answers, not load; leave --at-once out")
        if table.weights:
            raise PolicyError("a bound on losses holds for rows alike; leave --weights out")
        table = replace(table, at_once=(1,))
    return TrainPlan(asked, table, name, settings, asked.guard and name not in OWN_GUARDS, risk)


def _risk(
    max_loss: float | None, confidence: float | None, in_expectation: bool, policy: str | None
) -> dict[str, Any] | None:
    """The options of the policy under risk control, or None where none is asked for.

    policy: as named by the user, None where it was not. Raises DraftpickError for options that do
    not go together.
    """
    if max_loss is None:
        asking = {
            f"--policy {RISK_CONTROL}": policy == RISK_CONTROL,
            "--confidence": confidence is not None,
            "--in-expectation": in_expectation,
        }
        for option, given in asking.items():
            if given:
                raise DraftpickError(
                    f"{option} needs --max-loss: give the largest loss, for instance "
                    "--max-loss 0.05"
                )
        return None
    if policy not in (None, RISK_CONTROL):
        raise DraftpickError(
            f"--max-loss trains a policy of its own kind; leave --policy {policy} out, and choose "
            "how it predicts by --set model=ridge or model=knn"
        )
    if in_expectation and confidence is not None:
        raise DraftpickError("a loss is bounded in expectation or with a confidence; leave one out")
    level = 0.95 if confidence is None else confidence
    return {"max_loss": max_loss, "confidence": level, "in_expectation": in_expectation}


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
