"""Lossy arms under risk control: arms that change the answer, as far as their loss is bounded.

The training table is cut in two, whole groups at a time. One part trains predictors of the arms'
rewards and losses. The other calibrates the threshold lambda: the predicted loss below which an arm
may be chosen. See ``bounds`` for the statements that hold afterwards and their sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..base import origin_of
from ..errors import PolicyError
from ..records import Fitted, Float64, RewardTable
from .bounds import Risk
from .policy import TEMPERATURE, Guarantee, RiskControlPolicy
from .thresholds import MODELS, ThresholdGrid, calibrate, counted_losses, greedy_rows, learn, parted

AUTO = "auto"


def too_few(risk: Risk, here: int, share: float) -> str:
    """The sentence for a calibration set on which no threshold could ever be selected."""
    how = "in expectation"
    if risk.confidence is not None:
        how = f"with {100 * risk.confidence:.4g}% confidence"
    least = risk.least_queries
    return (
        f"a loss of at most {risk.max_loss:g} {how} needs at least {least} queries answered at "
        f"temperature 0 to calibrate on, even where nothing is lost, and there are {here}; collect "
        f"at least {math.ceil(least / share)} to train on, of which {share:.0%} are calibrated "
        "on, or allow more loss"
    )


def best_model(table: RewardTable, lossless: list[str], risk: Risk, queries: int, seed: int) -> str:
    """The model that would earn most if each half of the table's greedy queries, judging what was
    learnt from the other, were as many to calibrate on; the simplest of equals, and of very few."""
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    if len(set(greedy.groups)) < 2:
        return MODELS[0]
    halves = parted(greedy, 0.5, seed)

    def worth(model: str) -> float:
        earned = 0.0
        for learning, held in (halves, halves[::-1]):
            found = calibrate(learn(learning, lossless, model, seed), held)
            earned += float(found.rewards[:, found.selected(risk, queries)].mean())
        return earned

    return max(MODELS, key=worth)


def fit_risk_control(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    lossless: Sequence[str] = (),
    max_loss: float = 0.05,
    confidence: float = 0.95,
    in_expectation: bool = False,
    model: str = AUTO,
    calibration_share: float = 0.5,
) -> Fitted:
    """The arm with the highest predicted reward, with the loss of greedy answers under control.

    lossless: the arms that do not change the answer; they serve whatever the others may not.
    max_loss: the most that is lost on average over queries.
    confidence: that this is so, over calibrations; in_expectation: ignore it and bound the average
        over calibrations instead.
    model: for both rewards and losses: "ridge", "knn", "mean" (one arm for every query), or "auto"
        for the one that does best on what is learnt from (`best_model`).
    calibration_share: of the queries, not learnt from.

    The table has losses and the feature ``temperature`` (see ``with_temperature``), and rewards of
    speed. Where the risk is controlled at no threshold, the policy takes lossless arms alone. Where
    its lead over the best lossless arm is not significant, it takes that arm; a policy without loss
    satisfies any bound. ``Guarantee.threshold`` is None in both cases.

    Raises PolicyError where the table lacks these, every arm is lossless, none is, or there are too
    few queries to calibrate on.
    """
    risk = Risk(max_loss, None if in_expectation else confidence)
    lossless = list(lossless)
    _check(table, lossless)
    learning, held = parted(table, calibration_share, seed)
    here = len({g for g, greedy in zip(held.groups, greedy_rows(held), strict=True) if greedy})
    if here < risk.least_queries or not greedy_rows(learning).any():
        raise PolicyError(too_few(risk, here, calibration_share))
    chosen = best_model(learning, lossless, risk, here, seed) if model == AUTO else model
    grid, fixed = learn(learning, lossless, chosen, seed), learn(learning, lossless, "mean")
    found, alone = calibrate(grid, held), calibrate(fixed, held)
    step = found.selected(risk)
    gain, gain_low = _gain(found.rewards[:, step] - alone.rewards[:, 0])
    faster = gain_low > 0
    taken = grid if faster else fixed
    best = _constant_arms(fixed, held)  # [Z + 1]
    guarantee = Guarantee(
        max_loss=max_loss,
        confidence=risk.confidence,
        method=risk.method,
        threshold=float(grid.thresholds[step - 1]) if step and faster else None,
        queries=len(found),
        tasks={task: found.tasks.count(task) for task in sorted(set(found.tasks))},
        loss=float(found.losses[:, step].mean()),
        gain=gain,
        gain_low=gain_low,
        best_lossless=best[0],
        best_controlled=best[alone.selected(risk)],
        **_alone(held, lossless),
    )
    options = {
        "lossless": lossless,
        "max_loss": max_loss,
        "confidence": confidence,
        "in_expectation": in_expectation,
        "model": chosen,
        "calibration_share": calibration_share,
        "guarantee": asdict(guarantee),
    }
    origin = origin_of("risk-control", table, seed, options)
    return Fitted(RiskControlPolicy(origin, taken.rewards, taken.losses, lossless), [])


def _check(table: RewardTable, lossless: list[str]) -> None:
    if TEMPERATURE not in table.feature_names:
        raise PolicyError(
            "risk control is about greedy answers, and the table lacks the feature "
            f"{TEMPERATURE!r} that marks them; `policies.with_temperature` adds it where all "
            "answers are greedy"
        )
    counted_losses(table, lossless)
    if not lossless:
        raise PolicyError(
            "risk control needs a lossless arm to fall back on; collect one too, such as "
            "autoregressive"
        )
    if set(lossless) == set(table.arms):
        raise PolicyError(
            "every arm is lossless, so that nothing is lost; leave the largest loss out"
        )


def _alone(table: RewardTable, lossless: list[str]) -> dict[str, Any]:
    """The fields of a guarantee that describe the calibration rows."""
    greedy = greedy_rows(table)
    losses, lossy = counted_losses(table, lossless)[greedy], set(table.arms) - set(lossless)
    places = [i for i, arm in enumerate(table.arms) if arm in lossy]
    assert table.losses is not None
    return {
        "arm_losses": {table.arms[i]: float(losses[:, i].mean()) for i in places},
        "failed": int(np.isnan(table.losses[greedy][:, places]).sum()),
        "sampled": int((~greedy).sum()),
    }


def _constant_arms(fixed: ThresholdGrid, table: RewardTable) -> list[str]:
    """[Z + 1] the arm that a grid of means takes for every greedy query, at each threshold."""
    chosen = fixed.chosen(table)[greedy_rows(table)][0]
    return [table.arms[i] for i in chosen]


def _gain(gains: Float64) -> tuple[float, float]:
    """Mean and its lower bound (one-sided, 95%, Student's t) of [m] paired gains."""
    from scipy.stats import t

    mean, m = float(gains.mean()), len(gains)
    if m < 2:
        return mean, min(mean, 0.0)
    return mean, mean - float(t.ppf(0.95, m - 1) * gains.std(ddof=1) / np.sqrt(m))
