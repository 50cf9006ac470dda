"""The check that risk is controlled on held-out queries, and how training is told to see to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decoders.common.terminal import tables

from ..base import BasePolicy
from ..evaluation.bootstrap import RESAMPLES
from ..evaluation.evaluate import Value, aligned, value
from ..fitting import OwnGuard
from ..fixed import fixed_policy
from ..records import Policy, RewardTable
from .bounds import Risk
from .policy import Guarantee, RiskControlPolicy
from .thresholds import counted_losses, greedy_rows, with_temperature

if TYPE_CHECKING:
    from rich.table import Table


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


@dataclass(frozen=True)
class RiskReport:
    """The guarantee, and what the policy and every fixed arm lose and earn."""

    guarantee: Guarantee
    choices: list[LossAndReward]

    def __str__(self) -> str:
        return str(self.guarantee)

    def as_json(self) -> dict[str, Any]:
        """The guarantee, its sentence, and the rows of the table."""
        choices = [asdict(row) for row in self.choices]
        return {**asdict(self.guarantee), "sentence": str(self), "choices": choices}

    def tables(self, judged: str, width: int) -> list[Table]:
        """A row for the policy and each fixed arm. judged: on which queries."""
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
            for row in self.choices
        ]
        headings = ["choice", "loss", "95 %", "reward", "95 %", "lossy"]
        queries = max(row.reward.queries for row in self.choices)
        title = f"Loss and reward on the {queries} {judged} queries at temperature 0"
        return tables(title, headings, cells, width)


class RiskGuard(OwnGuard):
    """The calibration is the guard; the promise is measured on the held-out queries."""

    def check(self, options: Mapping[str, Any]) -> None:
        Risk(options["max_loss"], options["confidence"])

    def prepared(self, table: RewardTable) -> RewardTable:
        return with_temperature(table)

    def report(self, policy: Policy, table: RewardTable, seed: int) -> RiskReport:
        assert isinstance(policy, RiskControlPolicy)
        return RiskReport(policy.guarantee, losses_and_rewards(policy, table, seed=seed))
