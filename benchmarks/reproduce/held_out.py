"""Policies judged on held-out queries by their table of rewards, without a clock: the points of a
figure, and margins between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.evaluation.bootstrap import CONFIDENCE, group_sums, resample
from policies.evaluation.bounds import costs_margin
from policies.evaluation.evaluate import aligned, greedy_probs, per_query
from policies.evaluation.units import Units, units_of
from policies.records import Float64

from .records import Curve, Interval, Point, PolicyPlan


def points(
    curve: Curve,
    trained: Mapping[str, Sequence[Path]],
    held: Path,
    plans: Mapping[str, PolicyPlan],
) -> dict[str, Point]:
    """By the value on the curve's axis."""
    from collect.store.collection import Collection
    from collect.table import reward_table
    from collect.table_options import TableOptions
    from policies import load

    collection = Collection.open(held)
    found: dict[str, Point] = {}
    for at, name in curve.points.items():
        arms, temperatures = plans[name].arms, [curve.temperature]
        options = TableOptions(curve.judge, arms=arms, features=[], temperatures=temperatures)
        table = reward_table(collection, options)
        table = table.rows(np.flatnonzero(~np.isnan(table.rewards).all(axis=1)).tolist())
        units = units_of(table)
        chosen = [aligned(load(folder), table) for folder in trained[name]]
        none = np.zeros((0, *table.rewards.shape))
        repeats = none if table.repeats is None else table.repeats
        found[at] = Point(
            _earned(chosen, table.rewards, units),
            _earned([greedy_probs(each) for each in chosen], table.rewards, units),
            {
                arm: np.stack([units.by_query(each[:, i]) for each in chosen])
                for i, arm in enumerate(table.arms)
            },
            units.by_query(table.rewards),
            np.array([_earned(chosen, each, units).mean() for each in repeats]),
            units.group_of_query,
        )
    return found


def _earned(ways: Sequence[Float64], rewards: Float64, units: Units) -> Float64:
    """Of [n, A] probabilities of each seed, [S, Q]."""
    return np.stack([units.by_query(per_query(each, rewards)) for each in ways])


def figures(point: Point) -> dict[str, float]:
    """What a page shows of a point: `dynamic` and `greedy`, the seeds' mean, with their deviation;
    every arm alone and its share; and arms at random and in hindsight."""
    told: dict[str, float] = {"queries": len(point.groups)}
    for way, earned in (("dynamic", point.dynamic), ("greedy", point.greedy)):
        seeds = earned.mean(axis=1)
        told[way] = float(seeds.mean())
        told[f"{way}_deviation"] = float(seeds.std(ddof=1)) if len(seeds) > 1 else 0.0
    for i, (arm, share) in enumerate(point.shares.items()):
        told[f"always {arm}"] = float(np.nanmean(point.rewards[:, i]))
        told[f"share of {arm}"] = float(share.mean())
    told["uniform"] = float(np.nanmean(point.rewards))
    told["oracle"] = float(np.nanmax(point.rewards, axis=1).mean())
    return told


def ahead(
    ours: Float64,
    theirs: Float64,
    groups: NDArray[np.intp],
    by_costs: Float64 | None = None,
) -> Interval:
    """Bounds of the mean of ours less theirs, [S, Q] each, each with 95% confidence.

    Queries (groups of them) and seeds are resampled, the same for both sides: what other queries
    and another training would change. by_costs: [R], the difference by each measurement of the
    costs; its margin is added in squares, as in the bounds of `train`.
    """
    gains = ours - theirs
    sums = group_sums(gains.T, groups)  # [G, S]
    sizes = np.bincount(groups)
    queries, seeds = resample(len(sizes), 0), resample(len(gains), 1) / len(gains)
    drawn = ((queries @ sums) * seeds).sum(axis=1) / (queries @ sizes)
    tail, mean = 1 - CONFIDENCE, float(gains.mean())
    low, high = np.quantile(drawn, [tail, 1 - tail])
    error = 0.0 if by_costs is None else costs_margin(mean, by_costs, CONFIDENCE)
    return mean - math.hypot(mean - low, error), mean + math.hypot(high - mean, error)
