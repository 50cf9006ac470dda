"""Policies that learn while they serve, on traffic that changes half-way.

    python benchmarks/drift.py --out drift.png
    python benchmarks/drift.py --rewards rewards --runs 10 --json drift.json

Requests are drawn from a table with every arm's reward (a collection, or a made-up one). Half of
its queries train, the other half is the traffic. After half of the requests the world changes in
one of three ways: other tasks, another temperature, or the best arm gets 40% slower. `static`:
ridge regression on the training queries of the first world, which never learns again. `thompson`:
begins there too, and sees the reward of the arm that it took. `retrained`: in each world
the ridge trained on every arm's reward on that world's training queries. `best fixed`: the arm that
was best in the first world's training queries. Regret is against the best arm of every request;
`recovered` is the share of what retraining recovers of the static policy's, 300 requests after the
drift.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from collect.store.collection import Collection
from collect.table_options import TableOptions
from decoders.common.files import replacing, write_atomically
from decoders.common.terminal import tables
from policies import RewardTable, fit

KINDS = ("tasks", "temperature", "drafter")
PLAYERS = ("static", "thompson", "retrained", "best fixed")
SLOWER = 0.6  # of the best arm's reward is left
ADAPTED = 300  # requests after the drift


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rewards", type=Path, help="a collection; default: a made-up table")
    parser.add_argument("--reward", default="modelled")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a picture of cumulative regret")
    parser.add_argument("--json", type=Path, help="the figures")
    given = parser.parse_args()
    if given.requests <= 2 * ADAPTED or given.runs < 1:
        parser.error(f"--requests is above {2 * ADAPTED}, --runs 1 or more")
    if given.rewards:
        from collect.table import reward_table

        table = reward_table(Collection.open(given.rewards), TableOptions(given.reward)).filled()
    else:
        table = made_up(1200, given.seed)
    earned = {}
    for kind in KINDS:
        runs = [simulate(table, kind, given.requests, given.seed + i) for i in range(given.runs)]
        earned[kind] = {who: np.stack([run[who] for run in runs]) for who in runs[0]}
    told = summary(earned)
    heads = ["drift", "policy", "before", "next 300", "then", "recovered", "reward"]
    rows = [
        [
            kind,
            who,
            *(f"{value:.4f}" for value in each["regret"]),
            f"{each['recovered']:.2f}",
            f"{each['reward']:.4f}",
        ]
        for kind, players in told.items()
        for who, each in players.items()
    ]
    console = Console()
    for one in tables(f"Mean regret a request, {given.runs} runs", heads, rows, console.width):
        console.print(one)
    if given.out:
        draw(earned, given.out)
    if given.json:
        write_atomically(given.json, json.dumps(told, indent=2) + "\n")


def simulate(
    table: RewardTable, kind: str, requests: int = 2000, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """[requests] what each player earns on each request, and under "oracle" its best arm."""
    rng = np.random.default_rng(seed)
    train, traffic = table.split(0.5, seed)
    assert traffic is not None
    learnt, served = worlds(train, kind), worlds(traffic, kind)
    ridge = [fit("regression", world).policy for world in learnt]
    fixed = int(learnt[0].rewards.mean(axis=0).argmax())
    online = fit("thompson", learnt[0], seed=seed).policy
    draws = np.random.default_rng([seed, 0])
    choices = {
        "static": [ridge[0].scores(world.inputs).argmax(axis=1) for world in served],
        "retrained": [
            ridge[i].scores(world.inputs).argmax(axis=1) for i, world in enumerate(served)
        ],
        "best fixed": [np.full(len(world), fixed) for world in served],
    }
    earned = {who: np.zeros(requests) for who in (*PLAYERS, "oracle")}
    for at in range(requests):
        now = int(at >= requests // 2)
        world, row = served[now], int(rng.integers(len(served[now])))
        rewards = world.rewards[row]
        for who, chosen in choices.items():
            earned[who][at] = rewards[chosen[now][row]]
        found = online.choose(world.inputs[row], draws)
        earned["thompson"][at] = rewards[found.index]
        online.update(world.inputs[row], found.arm, rewards[found.index], found.propensity)
        earned["oracle"][at] = rewards.max()
    return earned


def worlds(table: RewardTable, kind: str) -> tuple[RewardTable, RewardTable]:
    """The table as it is before and after the drift."""
    if kind == "drafter":
        rewards = table.rewards.copy()
        rewards[:, rewards.mean(axis=0).argmax()] *= SLOWER
        return table, replace(table, rewards=rewards)
    if kind == "tasks":
        names = sorted(set(table.tasks))
        old = np.isin(table.tasks, names[: len(names) // 2])
    else:
        at = table.features[:, table.feature_names.index("temperature")]
        old = at == at.min()
    if old.all() or not old.any():
        raise SystemExit(f"the table has one kind of {kind} only; collect others too")
    return table.rows(np.flatnonzero(old)), table.rows(np.flatnonzero(~old))


def summary(
    earned: dict[str, dict[str, NDArray[np.float64]]],
) -> dict[str, dict[str, dict[str, object]]]:
    """By drift and player: mean regret before the drift, in the next 300 requests and after those;
    the share that the player recovers there of what retraining does; and the mean reward there."""
    told: dict[str, dict[str, dict[str, object]]] = {}
    for kind, rewards in earned.items():
        half = rewards["oracle"].shape[1] // 2
        parts = [slice(0, half), slice(half, half + ADAPTED), slice(half + ADAPTED, None)]
        regret = {
            who: [float((rewards["oracle"] - rewards[who])[:, part].mean()) for part in parts]
            for who in PLAYERS
        }
        static, retrained = regret["static"][2], regret["retrained"][2]
        told[kind] = {
            who: {
                "regret": regret[who],
                "recovered": (static - regret[who][2]) / (static - retrained),
                "reward": float(rewards[who][:, parts[2]].mean()),
            }
            for who in PLAYERS
        }
    return told


def made_up(rows: int, seed: int) -> RewardTable:
    """Four tasks, two temperatures, four arms: copying pays where answers repeat the prompt and are
    greedy, the general drafter is best on average, and the small one best at chatting."""
    rng = np.random.default_rng(seed)
    tasks = ["chat", "code", "qa", "rag"]
    task = rng.integers(4, size=rows // 2).repeat(2)  # a query at both temperatures
    centers = rng.normal(size=(4, 12))
    own = rng.normal(size=(rows // 2, 12)).repeat(2, axis=0)
    embeddings = centers[task] * 1.5 + own
    temperature = np.tile([0.0, 1.0], rows // 2)
    means = np.array(  # [task, arm]: plain, copy, general, small
        [
            [1.0, 1.0, 1.40, 1.60],
            [1.0, 1.6, 1.50, 1.30],
            [1.0, 1.1, 1.55, 1.40],
            [1.0, 1.75, 1.45, 1.25],
        ]
    )
    rewards = means[task] + 0.1 * own[:, :4] * np.array([0, 1, 1, 1])
    rewards += temperature[:, None] * np.array([0.0, -0.4, -0.1, -0.15])
    rewards += np.array([0, 0.15, 0.15, 0.15]) * rng.normal(size=rewards.shape)
    queries = [str(i // 2) for i in range(rows)]
    return RewardTable(
        query_ids=[f"{name}@{at:g}" for name, at in zip(queries, temperature, strict=True)],
        tasks=[tasks[i] for i in task],
        embeddings=embeddings.astype(np.float32),
        arms=["plain", "copy", "general", "small"],
        rewards=rewards,
        reward_name="speed-up",
        embedder="made-up",
        arms_fingerprint="",
        groups=queries,
        features=temperature[:, None].astype(np.float32),
        feature_names=("temperature",),
    )


def draw(earned: dict[str, dict[str, NDArray[np.float64]]], path: Path) -> None:
    """Cumulative regret, mean over runs, a panel for each drift."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for panel, (kind, rewards) in zip(figure.subplots(1, len(earned)), earned.items(), strict=True):
        for who in PLAYERS:
            panel.plot((rewards["oracle"] - rewards[who]).mean(axis=0).cumsum(), label=who)
        panel.axvline(rewards["oracle"].shape[1] // 2, color="grey", linestyle=":")
        panel.set(title=f"drift: {kind}", xlabel="requests", ylabel="cumulative regret")
    figure.axes[0].legend(fontsize=8)
    with replacing(path) as stream:
        figure.savefig(stream, format=path.suffix.lstrip("."), dpi=150)


if __name__ == "__main__":
    main()
