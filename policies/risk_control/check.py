"""Whether a promise is kept: on held-out queries, and over many calibrations with a known truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..base import BasePolicy
from ..evaluation.evaluate import Value, aligned, value
from ..fixed import fixed_policy
from ..records import RewardTable
from .bounds import Risk
from .policy import PromisedPolicy
from .thresholds import calibrate, counted_losses, greedy_rows, learn, parted


@dataclass(frozen=True)
class Kept:
    """What one way to choose loses and earns.

    name: "policy", "lossless", "keeps" (the promise's two fixed arms) or "fixed/<arm>".
    arm: of a fixed one, else None.
    loss, reward: means over queries with bootstrap intervals.
    lossy: the share of the queries that a lossy arm serves.
    """

    name: str
    arm: str | None
    loss: Value
    reward: Value
    lossy: float


def kept(
    policy: PromisedPolicy, table: RewardTable, *, resamples: int = 1000, seed: int = 0
) -> list[Kept]:
    """The policy, the fixed arms it is measured against and every other one, on a table's greedy
    rows; a failed lossy arm loses 1. Raises PolicyError where there is no greedy row."""
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    lost = replace(greedy, rewards=counted_losses(greedy, policy.lossless))

    def row(name: str, arm: str | None, chooses: BasePolicy) -> Kept:
        probs = aligned(chooses, greedy)
        lossy = [i for i, a in enumerate(greedy.arms) if a not in policy.lossless]
        loss, reward = (
            value(chooses, t, greedy=True, resamples=resamples, seed=seed) for t in (lost, greedy)
        )
        return Kept(name, arm, loss, reward, float(probs[:, lossy].sum(axis=1).mean()))

    fixed = [("lossless", policy.promise.best_lossless), ("keeps", policy.promise.best_kept)]
    fixed += [(f"fixed/{arm}", arm) for arm in policy.arms]
    return [
        row("policy", None, policy),
        *(row(name, arm, fixed_policy(policy.arms, arm)) for name, arm in fixed),
    ]


@dataclass(frozen=True)
class SplitsCheck:
    """A promise over many calibrations.

    splits: calibrations drawn.
    queries: in each.
    broken: the share whose true expected loss is above the promised one; with confidence it is at
        most 1 - confidence.
    loss: the true expected loss, mean over calibrations; in expectation at most the promised one.
    reward, lossless_reward: mean, of the policy and of the fastest lossless arms.
    lossy: the share of queries served by lossy arms.
    unused: the share of calibrations that allow no lossy arm.
    """

    splits: int
    queries: int
    broken: float
    loss: float
    reward: float
    lossless_reward: float
    lossy: float
    unused: float


def check_splits(
    table: RewardTable,
    risk: Risk,
    *,
    lossless: Sequence[str],
    model: str = "ridge",
    calibration_share: float = 0.5,
    queries: int | None = None,
    splits: int = 1000,
    seed: int = 0,
) -> SplitsCheck:
    """Calibrate again and again where the truth is known.

    The predictors are learnt once, from one part of the table. The other part is taken for the
    whole world: queries are drawn from it with replacement to calibrate on, and the true loss of
    what comes out is its mean over that whole part.

    queries: drawn for a calibration; None for as many as the part has.
    """
    learning, world = parted(table, calibration_share, seed)
    ladder = learn(learning, list(lossless), model, seed)
    every = calibrate(ladder, world)
    m, n = len(every), queries or len(every)
    rng = np.random.default_rng(seed)
    shares = rng.multinomial(n, np.full(m, 1 / m), size=splits) / n  # [splits, m]
    steps = risk.steps_kept(shares @ risk.comparable(every.losses[:, 1:]), n)  # [splits]
    loss, reward, lossy = (
        of.mean(axis=0) for of in (every.losses, every.rewards, every.lossy)
    )  # [Z + 1] each
    return SplitsCheck(
        splits=splits,
        queries=n,
        broken=float((loss[steps] > risk.max_loss).mean()),
        loss=float(loss[steps].mean()),
        reward=float(reward[steps].mean()),
        lossless_reward=float(reward[0]),
        lossy=float(lossy[steps].mean()),
        unused=float((steps == 0).mean()),
    )
