"""Judge the drafters, keep what pays, and write what serves it, with one page about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from collect.queries import Query, first_per_task, shipped
from collect.sweeps.batch import SweepOptions
from collect.table import read_rewards
from collect.table_options import TableOptions
from decoders.arms import AUTOREGRESSIVE
from decoders.common.terminal import progress
from decoders.records import Request
from policies.tracking.run import Task, train_run

from ...routing.router import Router
from .drafters import Gain
from .judging import ELSEWHERE, SHIPPED, Ratio, judge, ratio, replay, write_arms
from .page import Found, write_page
from .timing import timed

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe
    from policies import RewardTable
    from policies.tracking.run import TrainedRun

    from .options import SpecialiseOptions
    from .traffic import Traffic

EACH_ELSEWHERE = 8  # shipped queries of each task, for traffic that no group covers
MOST_LOST = 0.01  # of the speed there
ARMS, JUDGED, POLICY = "arms.yaml", "judged.yaml", "policy"


def judge_and_save(
    asked: SpecialiseOptions,
    traffic: Traffic,
    gains: dict[str, Gain],
    shipped_arm: ArmRecipe,
    names: Sequence[str],
    temperatures: tuple[float, ...],
    at_once: tuple[int, ...],
) -> Found:
    """Replay all arms on what was held out, train a policy under the guard, time it, and save.

    names: of the drafters, the common one first.
    """
    out = asked.out
    write_arms(out / JUDGED, shipped_arm, names, alone=True)
    how = SweepOptions(
        max_new_tokens=asked.max_new_tokens,
        similarity=False,
        temperatures=temperatures,
        at_once=at_once,
    )
    queries = [*traffic.held_out, *elsewhere()]
    options, bar = replace(asked.engine, arms=out / JUDGED), progress("judging", "outcomes")
    collection = replay(options, queries, out / "rewards", how, bar)
    judged = {temperature: judge(collection, temperature) for temperature in temperatures}
    arms, lost = [AUTOREGRESSIVE, SHIPPED, *names], Ratio(1.0, 1.0, 1.0)
    if len(names) > 1 and not any(each.several_pay for each in judged.values()):
        arms = arms[:3]  # what ships, and the common drafter
    while True:
        table, _ = read_rewards(collection, TableOptions(arms=arms))
        task = Task(table, plain=AUTOREGRESSIVE, out=out / POLICY, run_name="specialise")
        trained = train_run(task, tracking_uri=asked.tracking_uri)
        lost = _elsewhere(trained, table)
        if lost.mean >= 1 - MOST_LOST or arms == [AUTOREGRESSIVE, SHIPPED]:
            break
        # what was to be saved makes other traffic slower: without the arm that does
        arms.remove(_worst_elsewhere(table, arms[2:]))
    write_arms(out / ARMS, shipped_arm, arms[2:], alone=False)
    assert trained.guarded is not None
    found = Found(
        target=asked.target,
        groups=traffic.groups,
        said=traffic.said,
        held_out=len(traffic.held_out),
        gains=gains,
        judged=judged,
        saved=trained.guarded.saved,
        best_fixed=trained.guarded.best_fixed,
        verdict=trained.guarded.verdict,
        arms=tuple(arms),
        elsewhere=lost,
        timed=_timed(asked, traffic) if asked.timed else {},
    )
    write_page(out, found)
    return found


def elsewhere() -> list[Query]:
    """Queries unlike anybody's traffic: those that ship, for tests."""
    return [
        replace(query, task=ELSEWHERE, id=f"{ELSEWHERE}-{query.id}")
        for query in first_per_task(shipped("test"), EACH_ELSEWHERE)
    ]


def _elsewhere(trained: TrainedRun, table: RewardTable) -> Ratio:
    """What is saved over the arm that ships, on queries unlike all groups."""
    assert trained.guarded is not None
    rows = np.flatnonzero(np.array(table.tasks) == ELSEWHERE)
    chosen = trained.guarded.probs[rows].argmax(axis=1)
    logs = np.log(table.rewards[rows])
    gained = logs[np.arange(len(rows)), chosen] - logs[:, table.arms.index(SHIPPED)]
    return ratio(gained, [table.groups[row] for row in rows])


def _worst_elsewhere(table: RewardTable, arms: Sequence[str]) -> str:
    rows = np.array(table.tasks) == ELSEWHERE
    return min(arms, key=lambda arm: np.log(table.rewards[rows, table.arms.index(arm)]).mean())


def _timed(asked: SpecialiseOptions, traffic: Traffic) -> dict[str, tuple[Ratio, Ratio]]:
    options = replace(asked.engine, arms=asked.out / ARMS)
    router = Router.from_options(options, str(asked.out / POLICY))
    queries = first_per_task(traffic.held_out, asked.timed)
    with progress("timing", "queries") as tick:
        return timed(router, queries, Request(asked.max_new_tokens), tick)
