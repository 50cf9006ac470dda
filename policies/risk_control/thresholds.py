"""The grid of thresholds: predictors from one part of a table, calibrated on the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName

from ..base import BasePolicy, origin_of
from ..errors import PolicyError
from ..evaluation.bootstrap import group_means
from ..evaluation.units import Units, units_of
from ..learners.knn import fit_knn
from ..learners.network import Layer, NetworkPolicy
from ..learners.regression import fit_regression
from ..records import Float64, RewardTable, arm_index
from .bounds import Risk
from .policy import TEMPERATURE, fastest_allowed

MODELS = ("mean", "ridge", "knn")  # simplest first
GRID_SIZE = 50  # at most
MARGIN = 1e-5  # of a predicted loss, whose last digits depend on how many are predicted at once


def with_temperature(table: RewardTable) -> RewardTable:
    """The table with the feature that risk control needs: temperature 0 where it is missing.

    Only for tables of greedy answers. Raises PolicyError where a row is not named by its group, as
    the rows of a query at several temperatures are not.
    """
    if TEMPERATURE in table.feature_names:
        return table
    if table.query_of != table.query_ids:
        raise PolicyError(
            f"some rows are not of greedy answers, and the table does not say which: risk "
            f"control needs the feature {TEMPERATURE!r}, so leave it among those that the policy "
            "reads"
        )
    zeros = np.zeros((len(table), 1), dtype=np.float32)
    features = np.concatenate([table.features, zeros], axis=1)
    names = (*table.feature_names, TEMPERATURE)
    return replace(table, features=features, feature_names=names)


def counted_losses(table: RewardTable, lossless: list[str]) -> Float64:
    """[n, A] losses for risk control: 0 for a lossless arm, 1 for a lossy one that failed.

    Raises PolicyError where the table has no losses, an arm is unknown, or a lossless one lost
    something.
    """
    if table.losses is None:
        raise PolicyError(
            "risk control needs the arms' losses, which this table lacks; collect again"
        )
    losses = np.where(np.isnan(table.losses), 1.0, table.losses)
    free = [arm_index(table.arms, arm) for arm in lossless]
    lost = np.nan_to_num(table.losses[:, free]).max(axis=0, initial=0)
    if lost.any():
        raise PolicyError(
            f"the arm {lossless[int(lost.argmax())]} is declared lossless but has lost up to "
            f"{lost.max():.3g} of an answer; name it among the lossy ones"
        )
    losses[:, free] = 0.0
    return np.asarray(losses, dtype=np.float64)


def greedy_rows(table: RewardTable) -> NDArray[np.bool_]:
    """[n], whether the row is of a request at temperature 0."""
    place = table.feature_names.index(TEMPERATURE)
    return np.asarray(table.features[:, place] <= 0)


def parted(table: RewardTable, share: float, seed: int) -> tuple[RewardTable, RewardTable]:
    """(to learn from, to calibrate on): whole groups, drawn without regard to their tasks, so that
    every query is as likely as any other to be calibrated on."""
    if not 0 < share < 1:
        raise PolicyError(f"the share to calibrate on must be above 0 and below 1, not {share:g}")
    groups = np.unique(table.groups)
    count = min(max(round(share * len(groups)), 1), len(groups) - 1)
    if count < 1:
        raise PolicyError("risk control needs queries to learn from and others to calibrate on")
    drawn = set(np.random.default_rng(seed).permutation(groups)[:count].tolist())
    held = np.array([group in drawn for group in table.groups])
    return table.rows(np.flatnonzero(~held)), table.rows(np.flatnonzero(held))


@dataclass(frozen=True, eq=False)
class ThresholdGrid:
    """Everything learnt before the calibration: predictors, and the thresholds to test.

    table: the training part.
    rewards, losses: predictors, whose scores are [n, A].
    thresholds: [Z] values of lambda, ascending; none where no lossy arm is ever predicted to be the
        fastest.
    """

    table: RewardTable
    lossless: list[str]
    rewards: BasePolicy
    losses: BasePolicy
    thresholds: Float64

    @property
    def free(self) -> NDArray[np.bool_]:
        """[A], whether an arm is lossless."""
        return np.array([arm in self.lossless for arm in self.table.arms])

    def chosen(self, table: RewardTable) -> NDArray[np.intp]:
        """[n, Z + 1] the arm at every threshold, the first of which allows lossless arms alone."""
        thresholds = np.concatenate([[-np.inf], self.thresholds])
        rewards, losses = self.rewards.scores(table.inputs), self.losses.scores(table.inputs)
        return fastest_allowed(rewards, losses, self.free, greedy_rows(table), thresholds)


def learn(
    table: RewardTable, lossless: list[str], model: str = "ridge", seed: int = 0
) -> ThresholdGrid:
    """The predictors and the grid, from the training part of a table.

    model: "ridge", "knn", or "mean", each arm's mean, whatever the query is.
    """
    if model not in MODELS:
        raise NoSuchName("model of risk control", model, ("auto", *MODELS))
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    lossy = replace(greedy, rewards=counted_losses(greedy, lossless), losses=None, repeats=None)
    rewards, losses = _predictor(table, model, seed), _predictor(lossy, model, seed)
    free = np.array([arm in lossless for arm in table.arms])
    fast, lost = rewards.scores(greedy.inputs), losses.scores(greedy.inputs)  # [m, A] both
    tempting = ~free & (fast > fast[:, free].max(axis=1, keepdims=True))
    thresholds = np.zeros(0)
    if tempting.any():
        shares = np.linspace(0, 1, GRID_SIZE + 1)[1:]
        found = np.unique(np.quantile(lost[tempting], shares, method="inverted_cdf"))
        thresholds = found + MARGIN
    return ThresholdGrid(table, lossless, rewards, losses, thresholds)


def _predictor(table: RewardTable, model: str, seed: int) -> BasePolicy:
    if model == "mean":
        return _means(table)
    made = fit_knn(table) if model == "knn" else fit_regression(table, None, seed)
    assert isinstance(made.policy, BasePolicy)
    return made.policy


def _means(table: RewardTable) -> NetworkPolicy:
    bias = table.filled().rewards.mean(axis=0).astype(np.float32)  # [A]
    layer = Layer(np.zeros((len(table.arms), table.width), dtype=np.float32), bias)
    zeros, ones = np.zeros(table.width, dtype=np.float32), np.ones(table.width, dtype=np.float32)
    return NetworkPolicy(origin_of("mean", table, 0, {}), [layer], zeros, ones, "reward")


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """Loss and reward at every threshold of a grid on every calibration query.

    losses, rewards, lossy: [m, Z + 1], means over the query's greedy rows; lossy is the share that
        a lossy arm serves, a failed arm's reward the worst that the row has.
    tasks: [m].
    repeats: [R, Z + 1], the mean of `rewards` by each measurement of the costs; None where costs
        play no part or were measured once.
    units: which queries are in one group; groups alone are exchangeable.
    """

    losses: Float64
    rewards: Float64
    lossy: Float64
    tasks: list[str]
    units: Units
    repeats: Float64 | None = None

    def __len__(self) -> int:
        return len(self.tasks)

    def by_group(self, risk: Risk) -> Float64:
        """[G, Z] in [0, 1], the mean of each group's queries; `Risk.controlled` reads its means."""
        return group_means(risk.comparable(self.losses[:, 1:]), self.units.group_of_query)

    def selected(self, risk: Risk, groups: int | None = None) -> int:
        """The last threshold, counted from 1, that controls the risk; 0 is the lossless one.

        groups: what the means are taken to be over, None for those they are over.
        """
        means = self.by_group(risk).mean(axis=0)
        return int(risk.controlled(means, groups or self.units.groups))


def calibrate(grid: ThresholdGrid, table: RewardTable) -> RiskCurve:
    """The grid on queries that it was not learnt from, at least one of them greedy; rows at a
    temperature above 0 are left out. Rows of one query count as one."""
    table = table.filled()
    table = table.rows(np.flatnonzero(greedy_rows(table)))
    chosen, rows = grid.chosen(table), np.arange(len(table))[:, None]
    units = units_of(table)
    _, first = np.unique(units.query_of_row, return_index=True)
    losses = counted_losses(table, grid.lossless)
    repeats = None
    if table.repeats is not None:
        each = [units.by_query(rewards[rows, chosen]).mean(axis=0) for rewards in table.repeats]
        repeats = np.array(each)
    return RiskCurve(
        repeats=repeats,
        losses=units.by_query(losses[rows, chosen]),
        rewards=units.by_query(table.rewards[rows, chosen]),
        lossy=units.by_query(~grid.free[chosen]),
        tasks=[table.tasks[i] for i in first],
        units=units,
    )
