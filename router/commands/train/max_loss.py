"""`draftpick train --max-loss`: what is asked for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from decoders.common.errors import DraftpickError

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
