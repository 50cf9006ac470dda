"""`draftpick train --max-loss`: what is asked for, and what is printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError
from decoders.common.terminal import tables

if TYPE_CHECKING:
    from rich.table import Table

    from policies import RiskControlPolicy
    from policies.risk_control.report import LossAndReward

RISK_CONTROL = "risk-control"  # the policy's name

MaxLoss = Annotated[
    float | None,
    typer.Option(
        metavar="LOSS",
        help="Also allow lossy arms, if greedy answers lose at most this on average. The loss is "
        "1 - ROUGE-L to the target's own answer.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(help="With --max-loss: the confidence of the bound. Default: 0.95."),
]
InExpectation = Annotated[
    bool,
    typer.Option(
        "--in-expectation",
        help="With --max-loss: bound the expected loss instead, which needs fewer queries.",
    ),
]


def asked_for(
    max_loss: float | None, confidence: float | None, in_expectation: bool, policy: str | None
) -> dict[str, Any] | None:
    """The options of the policy under risk control, or None where none is asked for.

    policy: as named by the user, None where it was not. Raises DraftpickError for options that do
    not go together, PolicyError for a number out of range.
    """
    from policies.risk_control.bounds import Risk

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
    Risk(max_loss, level)
    return {"max_loss": max_loss, "confidence": level, "in_expectation": in_expectation}


def risk_control_tables(rows: list[LossAndReward], judged: str, width: int) -> list[Table]:
    """What the policy and every fixed arm lose and earn; judged: on which queries."""
    names = {
        "policy": "[bold green]policy[/]",
        "lossless": "best lossless ({})",
        "best-controlled": "best controlled ({})",
    }
    cells = [
        [
            names.get(row.name, row.name).format(row.arm),
            f"{row.loss.mean:.3f}",
            f"{row.loss.low:.3f} .. {row.loss.high:.3f}",
            f"{row.reward.mean:.3f}",
            f"{row.reward.low:.3f} .. {row.reward.high:.3f}",
            f"{row.lossy:.0%}",
        ]
        for row in rows
    ]
    headings = ["choice", "loss", "95 %", "reward", "95 %", "lossy"]
    queries = max(row.reward.queries for row in rows)
    title = f"Loss and reward on the {queries} {judged} queries at temperature 0"
    return tables(title, headings, cells, width)


def risk_control_json(policy: RiskControlPolicy, rows: list[LossAndReward]) -> dict[str, Any]:
    """The guarantee, its sentence, and the rows of the table."""
    return {
        **asdict(policy.guarantee),
        "sentence": str(policy.guarantee),
        "choices": [asdict(row) for row in rows],
    }
