"""Replay: every drafter on every group, and the choices among them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from collect.queries import Query
from collect.store.collection import Collection
from collect.sweeps.batch import SweepOptions
from collect.sweeps.run import sweep
from collect.table import read_rewards
from collect.table_options import TableOptions
from collect.traffic.figures import Sums
from decoders import Engine
from decoders.arms import AUTOREGRESSIVE, UNTRAINED_ARMS, ArmRecipe, load_arms
from decoders.common.files import write_atomically
from decoders.common.terminal import progress
from decoders.methods.hybrid.recipe import HybridRecipe
from decoders.methods.recurrent.recipe import RecurrentRecipe
from decoders.options import EngineOptions
from policies.selection.crossfit import usable

from ...commands.collect.run import load_engine, shown_by
from .drafters import UNION

SHIPPED = "shipped"  # the arm that users of the target have now
ALONE = "alone-"  # before the name of an arm without copying
ELSEWHERE = "elsewhere"  # the task of queries unlike all groups
HINDSIGHT, ROUTED, BY_GROUP = "hindsight", "as saved", "routed by group"
LENGTH = 16  # most tokens of a hybrid's draft


@dataclass(frozen=True)
class Ratio:
    """Speed against another arm's, a geometric mean over queries, with its 95% interval over
    conversations."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Judgement:
    """Speeds by replay at one temperature.

    matrix: arm -> group -> over the arm that ships.
    choices: how the arm is chosen -> over the arm that ships, and over the union, on all groups
        together.
    elsewhere: choices on queries unlike all groups, over the arm that ships.
    """

    matrix: Mapping[str, Mapping[str, Ratio]]
    choices: Mapping[str, tuple[Ratio, Ratio]]
    elsewhere: Mapping[str, Ratio]

    @property
    def several_pay(self) -> bool:
        """Whether each group's own drafter beats the common one beyond doubt."""
        return self.choices[BY_GROUP][1].low > 1


def shipped_arm(options: EngineOptions) -> ArmRecipe:
    """The arm that users of the target have now: its `hybrid` over a recurrent drafter, else prompt
    lookup."""
    for name, arm in options.recipes().items():
        if cell_of(arm) is not None and Engine.unsupported_reason(options, name) is None:
            return arm
    (lookup,) = (arm for arm in load_arms(UNTRAINED_ARMS).values() if arm.kind == "max_gram")
    return lookup


def cell_of(arm: ArmRecipe) -> RecurrentRecipe | None:
    """The recurrent drafter of a hybrid arm."""
    model = arm.model if isinstance(arm, HybridRecipe) else None
    return model if isinstance(model, RecurrentRecipe) else None


def write_arms(path: Path, shipped: ArmRecipe, names: Sequence[str], alone: bool) -> None:
    """Write a file of arms: plain decoding, what ships, and a `hybrid` for each drafter in
    drafters/NAME. alone: also each of their models without copying."""

    arms: dict[str, Any] = {
        AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE, "note": "no drafting"},
        SHIPPED: shipped.model_dump(mode="json", exclude_unset=True, exclude={"name"}),
    }
    cells = {name: {"kind": "recurrent", "drafter": f"./drafters/{name}/model"} for name in names}
    for name, cell in cells.items():
        note = "trained on all groups" if name == UNION else f"trained on {name}"
        arms[name] = {"kind": "hybrid", "model": cell, "length": {"k": LENGTH}, "note": note}
    if alone:
        if (known := cell_of(shipped)) is not None:
            cells = {SHIPPED: {"kind": "recurrent", "drafter": known.drafter}, **cells}
        for name, cell in cells.items():
            arms[ALONE + name] = {**cell, "length": {"kind": "adaptive", "k": 8}}
    write_atomically(path, yaml.safe_dump({"arms": arms}, sort_keys=False, allow_unicode=True))


def replay(
    options: EngineOptions, queries: Sequence[Query], out: Path, how: SweepOptions
) -> Collection:
    """Collect what OUT lacks; the collection."""
    engine, batch = load_engine(options.resolved(), how.arms, how.at_once)
    with progress("judging", "outcomes") as tick:
        sweep(engine, batch, queries, out, how, shown_by(tick))
    return Collection.open(out)


def judge(
    collection: Collection, temperature: float, saved: Mapping[str, str] = {}, seed: int = 0
) -> Judgement:
    """Compare arms and choices at one temperature, one answer at a time.

    saved: row -> the arm that what is saved takes there, judged by folds; without any it is left
        out.
    """
    options = TableOptions(temperatures=(temperature,), at_once=(1,))
    table = usable(read_rewards(collection, options)[0]).table
    logs = np.log(table.rewards)  # [n, A]
    at = {arm: column for column, arm in enumerate(table.arms)}
    tasks = np.array(table.tasks)
    own = tasks != ELSEWHERE
    drafters = [a for a in table.arms if not a.startswith(ALONE) and a != AUTOREGRESSIVE]
    groups = [task for task in dict.fromkeys(table.tasks) if task != ELSEWHERE]

    def over(values: NDArray[np.float64], rows: NDArray[np.bool_]) -> Ratio:
        return ratio(values[rows], [table.groups[i] for i in np.flatnonzero(rows)], seed)

    base = {True: ALONE + SHIPPED, False: SHIPPED}
    matrix = {}
    for arm in table.arms:
        against = base[arm.startswith(ALONE)]
        if arm in base.values() or against not in at:
            continue
        gained = logs[:, at[arm]] - logs[:, at[against]]
        matrix[arm] = {group: over(gained, tasks == group) for group in [*groups, ELSEWHERE]}
    chosen = {
        **{arm: [arm] * len(table) for arm in (SHIPPED, UNION)},
        BY_GROUP: [own_arm(task, at) for task in table.tasks],
        HINDSIGHT: [drafters[i] for i in logs[:, [at[arm] for arm in drafters]].argmax(axis=1)],
    }
    if saved:
        chosen[ROUTED] = [saved[row] for row in table.query_ids]
    rows, union = np.arange(len(table)), logs[:, at[UNION]]
    choices, elsewhere = {}, {}
    for name, arms in chosen.items():
        earned = logs[rows, [at[arm] for arm in arms]]
        choices[name] = over(earned - logs[:, at[SHIPPED]], own), over(earned - union, own)
        elsewhere[name] = over(earned - logs[:, at[SHIPPED]], ~own)
    return Judgement(matrix, choices, elsewhere)


def own_arm(task: str, arms: Container[str]) -> str:
    """The arm of a task's own drafter, which of a single group is the union."""
    if task == ELSEWHERE:
        return SHIPPED
    return task if task in arms else UNION


def ratio(gained: NDArray[np.float64], groups: Sequence[str], seed: int = 0) -> Ratio:
    """gained: [n] logarithms. groups: [n], the conversation of each."""
    if not len(gained):
        return Ratio(math.nan, math.nan, math.nan)
    found = Sums(groups, seed).ratio(gained, np.ones(len(gained)))
    return Ratio(math.exp(found.mean), math.exp(found.low), math.exp(found.high))
