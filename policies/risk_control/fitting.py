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
from ..evaluation.bootstrap import group_means
from ..evaluation.bounds import gain_of, resamples
from ..evaluation.units import Units, units_of
from ..records import Fitted, RewardTable
from .bounds import Risk
from .policy import TEMPERATURE, Guarantee, RiskControlPolicy
from .thresholds import MODELS, calibrate, counted_losses, greedy_rows, learn, parted

AUTO = "auto"


def too_few(risk: Risk, here: Units, share: float) -> str:
    """The sentence for a calibration set on which no threshold could ever be selected."""
    how = "in expectation"
    if risk.confidence is not None:
        how = f"with {100 * risk.confidence:.4g}% confidence"
    least = risk.least_groups
    there = str(here.queries) if here.groups == here.queries else str(here)
    what = "queries" if here.groups == here.queries else "sources of queries"
    return (
        f"a loss of at most {risk.max_loss:g} {how} needs at least {least} {what} answered at "
        f"temperature 0 to calibrate on, even where nothing is lost, and there are {there}; "
        f"collect at least {math.ceil(least / share)} to train on, of which {share:.0%} are "
        "calibrated on, or allow more loss"
    )


def best_model(table: RewardTable, lossless: list[str], risk: Risk, groups: int, seed: int) -> str:
    """The model that would earn most if each half of the table's greedy queries, judging what was
    learnt from the other, were as many groups to calibrate on; the simplest of equals, and of very
    few."""
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    if len(set(greedy.groups)) < 2:
        return MODELS[0]
    halves = parted(greedy, 0.5, seed)

    def worth(model: str) -> float:
        earned = 0.0
        for learning, held in (halves, halves[::-1]):
            found = calibrate(learn(learning, lossless, model, seed), held)
            earned += float(found.rewards[:, found.selected(risk, groups)].mean())
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
    max_loss: the most that is lost on average over queries, or over groups of them (`bounds`).
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
    here = units_of(held, greedy_rows(held))
    if here.groups < risk.least_groups or not greedy_rows(learning).any():
        raise PolicyError(too_few(risk, here, calibration_share))
    chosen = best_model(learning, lossless, risk, here.groups, seed) if model == AUTO else model
    grid, fixed = learn(learning, lossless, chosen, seed), learn(learning, lossless, "mean")
    found, alone = calibrate(grid, held), calibrate(fixed, held)
    step = found.selected(risk)
    units = found.units
    by_costs = None
    if found.repeats is not None and alone.repeats is not None:
        by_costs = found.repeats[:, step] - alone.repeats[:, 0]
    gained = found.rewards[:, step] - alone.rewards[:, 0]
    gain = gain_of(gained, units, resamples(units, seed), by_costs=by_costs)
    faster = gain.low > 0
    taken = grid if faster else fixed
    chosen_fixed = fixed.chosen(held)[greedy_rows(held)][0]  # [Z + 1], for every greedy query
    guarantee = Guarantee(
        max_loss=max_loss,
        confidence=risk.confidence,
        method=risk.method,
        threshold=float(grid.thresholds[step - 1]) if step and faster else None,
        queries=len(found),
        tasks={task: found.tasks.count(task) for task in sorted(set(found.tasks))},
        loss=float(group_means(found.losses[:, step], units.group_of_query).mean()),
        sources=None if units.groups == units.queries else units.groups,
        gain=gain.mean,
        gain_low=gain.low if math.isfinite(gain.low) else None,
        best_lossless=held.arms[chosen_fixed[0]],
        best_controlled=held.arms[chosen_fixed[alone.selected(risk)]],
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
            f"{TEMPERATURE!r} that marks them; `with_temperature` of policies.risk_control adds it "
            "where all answers are greedy"
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
