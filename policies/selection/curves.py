"""How a policy's gain grows with the queries that it learns from, and what it is worth on a task
that it has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..evaluation.bounds import Gain, gain_of, resamples
from ..evaluation.units import units_of
from ..records import Float64, RewardTable, by_task
from .crossfit import (
    LEAST,
    Chooser,
    best_fixed,
    cross_fit,
    earned,
    folds_of,
    gains_by_costs,
    learned,
    too_few,
    usable,
)

SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class CurvePoint:
    """A policy trained on a number of queries.

    queries: trained on in each fold, on average.
    policy: mean reward on the other folds.
    gain: over the best fixed arm of the whole table, paired.
    """

    queries: int
    policy: float
    gain: Gain


def learning_curve(
    table: RewardTable, policy: str, options: Mapping[str, Any] | None = None, seed: int = 0
) -> list[CurvePoint]:
    """The policy's cross-fitted gain when it learns from an eighth, a quarter, a half and all of
    the other folds' queries. Raises PolicyError where there are too few queries."""
    rows = require_enough(table)
    folds, units = folds_of(rows, seed), units_of(rows)
    counts = resamples(units, seed)
    best = best_fixed(rows, rows)
    fixed = units.by_query(earned(rows, best))
    points = []
    for share in SHARES:
        sizes: list[int] = []
        chooser = _thinned(learned(policy, seed, dict(options or {})), share, seed, sizes)
        chosen = cross_fit(rows, folds, chooser)
        values = units.by_query(earned(rows, chosen))
        size = round(float(np.mean(sizes)))
        by_costs = gains_by_costs(rows, chosen, best, units)
        gain = gain_of(values - fixed, units, counts, by_costs=by_costs)
        points.append(CurvePoint(size, float(values.mean()), gain))
    return points


def leave_one_task_out(
    table: RewardTable, policy: str, options: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, Gain]:
    """Task -> what a policy trained on all the other tasks gains there over the best fixed arm of
    those. Empty where there is a single task. Raises PolicyError where there are too few queries.
    """
    rows = require_enough(table)
    members_of = by_task(rows.groups, rows.tasks)
    task_of = {group: task for task, members in members_of.items() for group in members}
    names, fold_of = np.unique([task_of[group] for group in rows.groups], return_inverse=True)
    if len(names) < 2:
        return {}
    ours = cross_fit(rows, fold_of, learned(policy, seed, dict(options or {})))
    theirs = cross_fit(rows, fold_of, best_fixed)
    gains = earned(rows, ours) - earned(rows, theirs)
    found = {}
    for fold, name in enumerate(names):
        members = np.flatnonzero(fold_of == fold)
        here = rows.rows(members)
        units = units_of(here)
        each = units.by_query(gains[members])
        by_costs = gains_by_costs(here, ours[members], theirs[members], units)
        found[str(name)] = gain_of(each, units, resamples(units, seed), by_costs=by_costs)
    return found


def require_enough(table: RewardTable) -> RewardTable:
    """The table without gaps; raises PolicyError where it has too few queries for an estimate."""
    rows = usable(table).table
    units = units_of(rows)
    if units.groups < LEAST:
        raise PolicyError(too_few(units, "for an estimate"))
    return rows


def _thinned(chooser: Chooser, share: float, seed: int, sizes: list[int]) -> Chooser:
    """The chooser on a share of every task's training queries; `sizes` gets how many."""

    def chosen(train: RewardTable, held: RewardTable) -> Float64:
        part = train.split(1 - share, seed)[0] if share < 1 else train
        sizes.append(len(set(part.query_of)))
        return chooser(part, held)

    return chosen
