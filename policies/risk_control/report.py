"""Whether the risk is controlled: on held-out queries, and over calibrations with a known truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..base import BasePolicy
from ..evaluation.bootstrap import RESAMPLES
from ..evaluation.evaluate import Value, aligned, value
from ..fixed import fixed_policy
from ..records import RewardTable
from .bounds import Risk
from .policy import RiskControlPolicy
from .thresholds import calibrate, counted_losses, greedy_rows, learn, parted


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
    lost = replace(greedy, rewards=counted_losses(greedy, policy.lossless))

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


@dataclass(frozen=True)
class RepeatedCalibration:
    """Risk control over many calibrations.

    splits: the number of calibrations.
    queries: calibration queries in each.
    violated: the share whose true expected loss is above max_loss; at most 1 - confidence.
    loss: the true expected loss, mean over calibrations; in expectation at most max_loss.
    reward, lossless_reward: mean, of the policy and of the fastest lossless arms.
    lossy: the share of queries served by lossy arms.
    unused: the share of calibrations that allow no lossy arm.
    """

    splits: int
    queries: int
    violated: float
    loss: float
    reward: float
    lossless_reward: float
    lossy: float
    unused: float


def repeat_calibration(
    table: RewardTable,
    risk: Risk,
    *,
    lossless: Sequence[str],
    model: str = "ridge",
    calibration_share: float = 0.5,
    queries: int | None = None,
    splits: int = 1000,
    seed: int = 0,
) -> RepeatedCalibration:
    """Calibrate many times where the truth is known.

    The predictors are learnt once, on one part of the table. The other part is the population:
    calibration queries are drawn from it with replacement, and the true loss is the mean over it.

    queries: drawn for each calibration; None for the size of the population.
    """
    learning, world = parted(table, calibration_share, seed)
    grid = learn(learning, list(lossless), model, seed)
    every = calibrate(grid, world)
    m, n = len(every), queries or len(every)
    rng = np.random.default_rng(seed)
    shares = rng.multinomial(n, np.full(m, 1 / m), size=splits) / n  # [splits, m]
    steps = risk.controlled(shares @ risk.comparable(every.losses[:, 1:]), n)  # [splits]
    loss, reward, lossy = (
        of.mean(axis=0) for of in (every.losses, every.rewards, every.lossy)
    )  # [Z + 1] each
    return RepeatedCalibration(
        splits=splits,
        queries=n,
        violated=float((loss[steps] > risk.max_loss).mean()),
        loss=float(loss[steps].mean()),
        reward=float(reward[steps].mean()),
        lossless_reward=float(reward[0]),
        lossy=float(lossy[steps].mean()),
        unused=float((steps == 0).mean()),
    )
