"""What a reproduction is: models, queries, policies to train, runs to measure, tables to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collect.queries import Query
from policies.records import Float64

MEAN = "mean"  # in the place of a task: the plain mean over tasks

Arms: TypeAlias = Mapping[str, Mapping[str, Any]]  # name -> the body of its recipe
Summaries: TypeAlias = Mapping[str, dict[str, Any]]  # a run's name -> its benchmark's summary
Walls: TypeAlias = Mapping[str, Mapping[str, Float64]]  # see `draws.walls_of`
Counts: TypeAlias = Mapping[str, Mapping[str, Float64]]  # see `fronts.counts_of`
Interval: TypeAlias = tuple[float, float]  # bounds, each with 95% confidence
Draw: TypeAlias = Callable[[int], list[Query]]  # a limit a task -> queries


@dataclass(frozen=True)
class Models:
    """target: as for an engine; a folder below `family` where that is set.
    family: the folder that the weights lie in, and how to make them where it is not there.
    """

    target: str
    dtype: str
    max_new_tokens: int
    family: Path | None = None
    make: str = ""


@dataclass(frozen=True)
class PolicyPlan:
    """A policy to train, once for every seed.

    name: its group in the tables.
    arms: those that it chooses from.
    reward, alpha: what it maximises.
    train_size: so many of the training queries, None for all.
    task: those of this task alone.
    epochs: passes over the queries; None for the paper's three.
    """

    name: str
    arms: tuple[str, ...]
    alpha: float = 1.0
    reward: str = "paper"
    train_size: int | None = None
    task: str | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class Run:
    """One interleaved benchmark: arms, and every seed of the policies.

    arms: their recipes in this run, which may draft otherwise than while rewards were collected.
    dynamic: whether the policies also draw.
    tasks: of the test queries, none for all.
    """

    name: str
    temperature: float
    arms: Arms
    policies: tuple[str, ...] = ()
    dynamic: bool = True
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """What a column of a table holds: a run, a task of it or MEAN, and the paper's name for it."""

    title: str
    run: str
    task: str
    paper: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table: what the paper calls it, and our method."""

    label: str
    method: str


@dataclass(frozen=True)
class Table:
    """One measure of several methods, ours beside the paper's.

    measure: the field of a benchmark's cell.
    paper: label -> the paper's value in each column, None where it has none.
    """

    title: str
    measure: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    paper: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """A figure: what a policy earns against what was varied, judged on held-out queries.

    points: the policies' names by the value on the horizontal axis.
    judge: the reward that it is judged by, at `temperature`.
    paper: what the paper's figure shows, in a sentence.
    """

    title: str
    axis: str
    points: Mapping[str, str]
    judge: str = "modelled"
    temperature: float = 1.0
    paper: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and whether what was measured agrees.

    margins: of what was measured, bounds of all that it compares (`draws.margin`, `fronts.lead`,
        `held_out.ahead`), each above 0 where it holds. Raises KeyError where they are incomplete.
    """

    says: str
    margins: Callable[[Measured], Sequence[Interval]]


@dataclass(frozen=True, eq=False)
class Point:
    """A policy's S seeds on Q held-out queries.

    dynamic, greedy: [S, Q] what each seed's policy earns by drawing its arm, and by its best one.
    shares: [S, Q] of each arm, how likely it is drawn.
    rewards: [Q, A] of each arm.
    by_costs: [R] the mean of `dynamic` by each measurement of the costs; empty of one alone.
    groups: [Q] of the queries, from 0, which alone are independent.
    """

    dynamic: Float64
    greedy: Float64
    shares: Mapping[str, Float64]
    rewards: Float64
    by_costs: Float64
    groups: NDArray[np.intp]


@dataclass(frozen=True)
class Measured:
    """summaries: by run. points: by a curve's title, value -> policies judged.
    walls, counts: by run, what every method's answers took, and how good they are, for margins."""

    summaries: Summaries
    points: Mapping[str, Mapping[str, Point]] = field(default_factory=dict)
    walls: Mapping[str, Walls] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)

    def cell(self, run: str, method: str, task: str) -> dict[str, Any]:
        """The figures of an arm or a group of policies on a task; MEAN gives those overall."""
        from collect.queries import OVERALL

        summary = self.summaries[run]
        found = {**summary["arms"], **summary.get("seeds", {}), "oracle": summary["oracle"]}
        cell: dict[str, Any] | None = found[method][OVERALL if task == MEAN else task]
        if cell is None:
            raise KeyError(f"{method} answered nothing of {task} in {run}")
        return cell

    def value(self, run: str, method: str, task: str, name: str = "speedup_vs_ar") -> float:
        """A field of a cell."""
        if task == MEAN and name == "speedup_vs_ar":
            name = "speedup_mean_over_tasks"
        found: float = self.cell(run, method, task)[name]
        return found


@dataclass(frozen=True)
class Reproduction:
    """One result of the paper.

    minutes: about, on two cores.
    arms: those whose rewards are collected.
    train, test: queries a task at most, for each of `draw_train` and `draw_test`.
    differs: how this differs from the paper's setting, in sentences.
    """

    name: str
    title: str
    minutes: float
    models: Models
    arms: Arms
    draw_train: Draw
    draw_test: Draw
    train: int
    test: int
    policies: tuple[PolicyPlan, ...]
    runs: tuple[Run, ...] = ()
    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    claims: tuple[Claim, ...] = ()
    differs: tuple[str, ...] = ()
