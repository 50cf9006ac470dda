"""Judge the drafters, keep what pays, and write what serves it, with one page about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collect.queries import Query, first_per_task, shipped
from collect.sweeps.batch import SweepOptions
from collect.table import read_rewards
from collect.table_options import TableOptions
from decoders.arms import AUTOREGRESSIVE, ArmRecipe
from decoders.common.terminal import progress
from decoders.records import Request
from policies import RewardTable
from policies.records import Float64
from policies.tracking.run import Task, train_run

from ...records import AskOptions
from ...routing.router import Router
from .drafters import UNION, Gain
from .judging import ELSEWHERE, ROUTED, SHIPPED, Ratio, judge, ratio, replay, write_arms
from .options import SpecialiseOptions
from .page import Found, write_page
from .traffic import Traffic

EACH_ELSEWHERE = 8  # shipped queries of each task, for traffic that no group covers
MOST_LOST = 0.01  # of the speed there
ARMS, JUDGED, POLICY = "arms.yaml", "judged.yaml", "policy"
WARM_UP = "Count to ten, then name the days of the week."


def judge_and_save(
    asked: SpecialiseOptions,
    traffic: Traffic,
    gains: dict[str, Gain],
    shipped_arm: ArmRecipe,
    names: Sequence[str],
    how: SweepOptions,
) -> Found:
    """Replay all arms on what was held out, train a policy under the guard, time it, and save.

    names: of the drafters, the common one first.
    """
    out = asked.out
    write_arms(out / JUDGED, shipped_arm, names, alone=True)
    queries = [*traffic.held_out, *elsewhere()]
    collection = replay(replace(asked.engine, arms=out / JUDGED), queries, out / "rewards", how)
    arms = [AUTOREGRESSIVE, SHIPPED, *names]
    if not any(judge(collection, at).several_pay for at in how.temperatures):
        arms = arms[:3]  # what ships, and the common drafter
    table, _ = read_rewards(collection, TableOptions(arms=arms))
    task = Task(
        table,
        fixed=_fixed(table, arms[1:]),
        objection=_objection,
        plain=AUTOREGRESSIVE,
        out=out / POLICY,
        run_name="specialise",
    )
    trained = train_run(task, tracking_uri=asked.tracking_uri)
    assert trained.guarded is not None
    best = trained.guarded.probs.argmax(axis=1).tolist()
    saved = {row: table.arms[i] for row, i in zip(table.query_ids, best, strict=True)}
    write_arms(out / ARMS, shipped_arm, arms[2:], alone=False)
    found = Found(
        target=asked.target,
        chat_template=asked.chat_template,
        traffic=traffic,
        gains=gains,
        judged={at: judge(collection, at, saved) for at in how.temperatures},
        guarded=trained.guarded,
        arms=tuple(arms),
        elsewhere=elsewhere_of(table, trained.guarded.probs),
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


def elsewhere_of(table: RewardTable, probs: Float64) -> Ratio:
    """Speed of choices [n, A] over the arm that ships, on queries unlike all groups."""
    rows = np.flatnonzero(np.array(table.tasks) == ELSEWHERE)
    logs = np.log(table.rewards[rows])
    gained = logs[np.arange(len(rows)), probs[rows].argmax(axis=1)]
    gained -= logs[:, table.arms.index(SHIPPED)]
    return ratio(gained, [table.groups[row] for row in rows])


def _objection(table: RewardTable, probs: Float64) -> str:
    lost = 1 - elsewhere_of(table, probs).mean
    return f"it loses {lost:.1%} on queries unlike all groups" if lost > MOST_LOST else ""


def _fixed(table: RewardTable, arms: Sequence[str]) -> str:
    """The best of these that loses nothing to what ships on queries unlike all groups."""
    whole = table.filled()
    means = dict(zip(table.arms, whole.rewards.mean(axis=0).tolist(), strict=True))
    always = dict(zip(table.arms, np.eye(len(table.arms)), strict=True))
    safe = [arm for arm in arms if not _objection(whole, np.tile(always[arm], (len(table), 1)))]
    return max(safe, key=lambda arm: means[arm])


def _timed(asked: SpecialiseOptions, traffic: Traffic) -> dict[str, tuple[Ratio, Ratio]]:
    """Speed over the arm that ships, of the common drafter and of the arm chosen: of decoding, and
    of whole answers with their prompts and the choice. The ways take turns in a random order, query
    by query."""
    options = replace(asked.engine, arms=asked.out / ARMS)
    router = Router.from_options(options, str(asked.out / POLICY))
    encode, order = router.engine.encode_chat, random.Random(0)
    request, most = Request(asked.max_new_tokens), router.engine.context - asked.max_new_tokens
    fitting = [query for query in traffic.held_out if len(query.prompt(encode)) <= most]
    queries = first_per_task(fitting, asked.timed)
    ways = [SHIPPED, *(arm for arm in (UNION,) if arm in router.engine.arm_names), ROUTED]
    warm = encode([{"role": "user", "content": WARM_UP}])
    for arm in router.engine.arm_names:
        router.engine.decode(arm, warm, Request(32))
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with progress("timing", "queries") as tick:
        for number, query in enumerate(queries, 1):
            ids = query.prompt(encode)
            for way in order.sample(ways, len(ways)):
                done = router.answer(ids, request, AskOptions(None if way == ROUTED else way))
                tokens = max(1, len(done.result.ids) - 1)
                seconds[way].append((done.result.decode_s / tokens, done.wall_s / tokens))
            tick(number, len(queries))
    groups = [query.group or query.id for query in queries]
    base = np.log(np.array(seconds[SHIPPED]))
    made = {}
    for way in ways[1:]:
        gained = base - np.log(np.array(seconds[way]))  # [n, 2]
        made[way] = ratio(gained[:, 0], groups), ratio(gained[:, 1], groups)
    return made
