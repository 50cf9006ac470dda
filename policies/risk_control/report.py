"""Whether the risk is controlled on held-out queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base import BasePolicy
from ..evaluation.bootstrap import RESAMPLES
from ..evaluation.evaluate import Value, aligned, value
from ..fixed import fixed_policy
from ..records import RewardTable
from .policy import RiskControlPolicy
from .thresholds import counted_losses, greedy_rows


@dataclass(frozen=True)
class LossAndReward:
    """Loss and reward of the policy or of a fixed arm.

    name: "policy", "lossless", "best-controlled" (the guarantee's two fixed arms) or "fixed/<arm>".
    arm: the fixed arm, None for the policy.
    loss, reward: means over queries with bootstrap intervals.
    lossy: the share of the queries that a lossy arm serves.
    """

    name: str
    arm: str | None
    loss: Value
    reward: Value
    lossy: float


def losses_and_rewards(
    policy: RiskControlPolicy, table: RewardTable, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[LossAndReward]:
    """The policy, the fixed arms it is measured against and every other one, on a table's greedy
    rows; a failed lossy arm loses 1. Raises PolicyError where there is no greedy row."""
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    lost = replace(greedy, rewards=counted_losses(greedy, policy.lossless), repeats=None)

    def row(name: str, arm: str | None, chooses: BasePolicy) -> LossAndReward:
        probs = aligned(chooses, greedy)
        lossy = [i for i, a in enumerate(greedy.arms) if a not in policy.lossless]
        loss, reward = (
            value(chooses, t, greedy=True, resamples=resamples, seed=seed) for t in (lost, greedy)
        )
        return LossAndReward(name, arm, loss, reward, float(probs[:, lossy].sum(axis=1).mean()))

    fixed = [
        ("lossless", policy.guarantee.best_lossless),
        ("best-controlled", policy.guarantee.best_controlled),
    ]
    fixed += [(f"fixed/{arm}", arm) for arm in policy.arms]
    return [
        row("policy", None, policy),
        *(row(name, arm, fixed_policy(policy.arms, arm)) for name, arm in fixed),
    ]
