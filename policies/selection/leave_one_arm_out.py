"""What a policy is worth when one of its arms is gone: taken from it, or left out of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..evaluation.bounds import Gain, gain_of, resamples
from ..evaluation.units import units_of
from ..records import Float64, Policy, RewardTable
from .crossfit import (
    best_fixed,
    cross_fit,
    earned,
    folds_of,
    gains_by_costs,
    learned,
)
from .curves import require_enough


@dataclass(frozen=True)
class WithoutArm:
    """Without one arm, each over the best fixed arm of the others, on queries not trained on.

    taken: the policy trained with all arms, which takes the best of the others by its scores.
    retrained: the policy trained without the arm.
    """

    taken: Gain
    retrained: Gain


def leave_one_arm_out(
    table: RewardTable, policy: str, options: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, WithoutArm]:
    """Arm -> what remains of the policy's gain without it; empty where fewer than three arms leave
    nothing to choose. Raises PolicyError where there are too few queries."""
    rows, given = require_enough(table), dict(options or {})
    if len(rows.arms) < 3:
        return {}
    folds, units = folds_of(rows, seed), units_of(rows)
    counts = resamples(units, seed)
    scores = cross_fit(rows, folds, learned(policy, seed, given, _scores))
    found = {}
    for out, arm in enumerate(rows.arms):
        kept = [i for i in range(len(rows.arms)) if i != out]
        fewer = _columns(rows, kept)
        best = best_fixed(fewer, fewer)
        anew = cross_fit(fewer, folds, learned(policy, seed, given))

        def over(chosen: Float64, table: RewardTable = fewer, best: Float64 = best) -> Gain:
            gains = units.by_query(earned(table, chosen) - earned(table, best))
            by_costs = gains_by_costs(table, chosen, best, units)
            return gain_of(gains, units, counts, by_costs=by_costs)

        found[arm] = WithoutArm(over(scores[:, kept]), over(anew))
    return found


def _columns(table: RewardTable, kept: list[int]) -> RewardTable:
    losses = None if table.losses is None else table.losses[:, kept]
    arms = [table.arms[i] for i in kept]
    repeats = None if table.repeats is None else table.repeats[..., kept]
    rewards = table.rewards[:, kept]
    drawn = None if table.drawn is None else table.drawn[..., kept]
    return replace(table, arms=arms, rewards=rewards, losses=losses, repeats=repeats, drawn=drawn)


def _scores(policy: Policy, table: RewardTable) -> Float64:
    """In place of probabilities, which may all lie on the arm that is taken away."""
    return policy.scores(table.read_by(policy.origin))
