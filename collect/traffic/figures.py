"""What each configuration would have given on logged traffic, with intervals over conversations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoders.costs.measured import Costs
from policies.evaluation.bootstrap import group_index, ratio_interval, resample
from policies.evaluation.bounds import costs_margin, widened

from ..rewards import modelled_s
from .replayed import Traffic

LEVEL = 0.975  # of each side of an interval of 95 %


@dataclass(frozen=True)
class Figure:
    """A ratio of sums over answers, with a 95 % interval; nan where there is nothing to divide by,
    and an interval of nan where a single conversation gives none."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Drafting:
    """An arm, whatever passes cost.

    acceptance: accepted over drafted tokens.
    tokens_a_pass: tokens that a pass gives after the prompt's.
    """

    arm: str
    acceptance: Figure
    tokens_a_pass: Figure


@dataclass(frozen=True)
class Speed:
    """An arm at one load.

    tokens_a_second: of one answer, its prompt left out.
    speedup: over no drafts; the interval holds the error of the costs, where they were measured
        several times.
    """

    arm: str
    tokens_a_second: Figure
    speedup: Figure


class Sums:
    """Sums over answers with their resamples: conversations are drawn with all of their answers."""

    def __init__(self, groups: Sequence[str], seed: int) -> None:
        self._index = group_index(groups)
        self._counts = resample(int(self._index.max()) + 1, seed)  # [B, G]

    def ratio(self, over: NDArray[np.float64], under: NDArray[np.float64]) -> Figure:
        """over, under: [n] of each answer."""
        mean = float(over.sum() / under.sum()) if under.sum() > 0 else math.nan
        return Figure(mean, *ratio_interval(over, under, self._index, self._counts))


def drafting(traffic: Traffic, seed: int = 0, where: Sequence[int] | None = None) -> list[Drafting]:
    """Draft statistics of each arm, over the answers at `where` or over all."""
    chosen = range(len(traffic.answers)) if where is None else where
    sums = Sums([traffic.groups[at] for at in chosen], seed)
    made = []
    for arm, outcomes in traffic.outcomes.items():
        rows = [outcomes[at] for at in chosen]
        drafted = np.array([row.drafted or 0 for row in rows], dtype=np.float64)
        accepted = np.array([row.accepted or 0 for row in rows], dtype=np.float64)
        rounds = np.array([row.rounds or 0 for row in rows], dtype=np.float64)
        decoded = np.array([(row.new_tokens or 1) - 1 for row in rows], dtype=np.float64)
        made.append(Drafting(arm, sums.ratio(accepted, drafted), sums.ratio(decoded, rounds)))
    return made


def speeds(traffic: Traffic, costs: Costs, load: int | None, seed: int = 0) -> list[Speed]:
    """Speed of each arm.

    load: answers at once; None for every answer at its own.
    """
    loads = traffic.loads(costs) if load is None else [load] * len(traffic.answers)
    sums = Sums(traffic.groups, seed)

    def spent(arm: str) -> list[NDArray[np.float64]]:
        """Seconds by the costs, then by each measurement of them."""
        return [_seconds(traffic, arm, each, loads) for each in (costs, *costs.repeats)]

    plain, *plain_by_costs = spent(traffic.plain)
    made = []
    for arm, outcomes in traffic.outcomes.items():
        seconds, *by_costs = spent(arm)
        decoded = np.array([(row.new_tokens or 1) - 1 for row in outcomes], dtype=np.float64)
        speedup = sums.ratio(plain, seconds)
        repeats = np.array(
            [p.sum() / s.sum() for p, s in zip(plain_by_costs, by_costs, strict=True)]
        )
        margin = costs_margin(speedup.mean, repeats, LEVEL)
        bounds = widened(speedup.mean, (speedup.low, speedup.high), margin)
        made.append(Speed(arm, sums.ratio(decoded, seconds), Figure(speedup.mean, *bounds)))
    return made


def _seconds(traffic: Traffic, arm: str, costs: Costs, loads: Sequence[int]) -> NDArray[np.float64]:
    """[n] of decoding each answer, as the reward `modelled` prices it."""
    return np.array(
        [
            modelled_s(replace(row, running=load - 1), costs.of_answers(load))
            for row, load in zip(traffic.outcomes[arm], loads, strict=True)
        ]
    )
