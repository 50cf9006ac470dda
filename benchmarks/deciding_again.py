"""Deciding again while answering, beside deciding once: by replay along the target's own answers.

    python benchmarks/deciding_again.py --work runs/deciding --limit 8 --max-new-tokens 96

The target writes greedy answers to the test queries that ship; every arm is then replayed along
them. Rounds and steps are exact and depend on no clock. Seconds are modelled: a round costs the
pass over what it drafted and one token, and each step of a recurrent drafter a fixed share of a
pass over one token, steps for scoring included. The answers and the target's states are kept in
--work, a file for each task, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from collect.queries import first_per_task, read_queries, shipped
from decoders import Engine
from decoders.arms import AUTOREGRESSIVE, ArmRecipe, recipe
from decoders.common.files import replacing
from decoders.costs.passes import PassCosts, assume
from decoders.drafters import RecurrentDrafter
from decoders.loop import SpeculativeDecoding
from decoders.offline.batch import Batch
from decoders.offline.composed import along, models_of, over
from decoders.offline.replay import replay
from decoders.offline.stack import Stack, states_before
from decoders.offline.unrolled import Known, Unrolled
from router.specbench.bench import rich_tables

# A pass over 1, 2, ... 17 tokens in passes over one: of the default target on two cores of an Intel
# Xeon, in bfloat16 and in int4 with compiled layers (`decoders.costs.passes.learn`); and where
# reading more tokens costs nothing, as on a large GPU.
COSTS = {
    "bfloat16": (1.0, *[1.02] * 3, *[1.03] * 4, *[1.06] * 3, *[1.12] * 5, 1.19),
    "int4": (1.0, 1.1, 1.21, 1.31, *[2.1] * 3, 2.28, *[3.2] * 4, *[3.89] * 3, 3.98, 5.01),
    "flat": (1.0,) * 17,
}

NEVER = 1 << 20  # tokens
BASE, WIDTH = "hybrid", 110
HEADINGS = ["arm", "rounds", "tokens a round", "steps a round", "speed-up", "to hybrid"]
COPY: dict[str, Any] = {"kind": "max_gram", "cost_aware": True, "length": {"k": 16}}
Bodies = dict[str, dict[str, Any]]


def fixed(models: Sequence[str], table: str | None) -> tuple[Bodies, Bodies]:
    """Arms that draft alone, and hybrids of copying and a model."""
    cells: Bodies = {Path(name).name: {"kind": "recurrent", "drafter": name} for name in models}
    adaptive = {"length": {"kind": "adaptive", "k": 8}}
    alone: Bodies = {"copies": COPY, **{name: body | adaptive for name, body in cells.items()}}
    if table is not None:
        alone["copies, table"] = {**COPY, "drafter": table}
    hybrids: Bodies = {
        f"hybrid, {name}" if number else BASE: {"kind": "hybrid", "model": body}
        for number, (name, body) in enumerate(cells.items())
    }
    return alone, hybrids


def choosing(models: Sequence[str], table: str | None) -> Bodies:
    """Arms that decide within the answer; the first model stands for those of one alone."""
    cells = [{"kind": "recurrent", "drafter": name} for name in models]
    every: dict[str, Any] = {"kind": "switching", "parts": [COPY, *cells]}
    two: dict[str, Any] = {"kind": "switching", "parts": [COPY, cells[0]]}
    among: dict[str, Any] = {"kind": "switching", "parts": cells, "none": False}
    tables = (
        {
            "switching, one and the table": {
                **two,
                "parts": [*two["parts"], {**COPY, "drafter": table}],
            }
        }
        if table
        else {}
    )
    return {
        **tables,
        "a copy, else the model": {**two, "after": NEVER},
        "switching, one model": two,
        "switching, one, after 8": {**two, "after": 8},
        "switching, one, after 16": {**two, "after": 16},
        "switching, one, without promises": {**two, "trust": 0},
        "switching, all models": every,
        "switching, all, drawn": {**every, "drawn": True},
        "switching, all, scored twice as often": {**every, "every": 4},
        "switching, all, after 8": {**every, "after": 8},
        "switching, all, after 16": {**every, "after": 16},
        "hybrid of a switching model": {"kind": "hybrid", "model": among},
        "hybrid of one, after 16": {"kind": "hybrid", "model": {**among, "after": 16}},
    }


@dataclass(frozen=True)
class Answers:
    """Of one task. states: of each answer of n tokens [n, d], in front of each of them."""

    prompts: list[list[int]]
    ids: list[list[int]]
    states: list[torch.Tensor]


@dataclass(frozen=True)
class Spent:
    """Along one answer. cost: passes over one token.
    steps: of recurrent drafters.
    """

    tokens: int
    rounds: int
    steps: int
    cost: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, help="default: the test queries shipped")
    parser.add_argument("--limit", type=int, default=8, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--costs", choices=COSTS, default="bfloat16", help="of the target's passes")
    parser.add_argument("--draft-cost", type=float, default=0.06, help="of a step, in passes")
    parser.add_argument(
        "--models",
        nargs="+",
        default=["recurrent-general", "recurrent-math", "recurrent-translation"],
        help="recurrent drafters, names or folders",
    )
    parser.add_argument("--table", default="bigram", help="of next tokens; '' leaves its arm out")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the answers")
    given = parser.parse_args()
    alone, hybrids = fixed(given.models, given.table or None)
    bodies = {
        AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE},
        **alone,
        **hybrids,
        **choosing(given.models, given.table or None),
    }
    arms = {name: _arm(name, body, given.draft_cost) for name, body in bodies.items()}
    engine = Engine.load(
        given.target, arms, dtype=given.dtype, device=given.device, backend="native"
    )
    costs = PassCosts(COSTS[given.costs])
    assume(engine.target, costs)  # before any arm is built
    queries = first_per_task(
        read_queries(given.queries) if given.queries else shipped("test"), given.limit
    )
    tasks = list(dict.fromkeys(query.task for query in queries))
    spent: dict[str, dict[str, list[Spent]]] = {name: {} for name in arms}
    for task in track(tasks, "replaying", console=Console(stderr=True)):
        prompts = [
            engine.encode_chat([{"role": "user", "content": query.turns[0]}])
            for query in queries
            if query.task == task
        ]
        path = given.work / f"{task}-{len(prompts)}-{given.max_new_tokens}-{given.dtype}.pt"
        answers = _answers(engine, prompts, given.max_new_tokens, path)
        for name, each in replays(engine, answers, costs, given.draft_cost).items():
            spent[name][task] = each
    oracles = {"oracle of those alone": alone, "oracle of the hybrids": hybrids}
    print_tables(spent, oracles, f"passes: {given.costs}, a step: {given.draft_cost:g}")


def _arm(name: str, body: dict[str, Any], draft_cost: float) -> ArmRecipe:
    if body["kind"] in ("hybrid", "switching"):
        body = {**body, "draft_cost": draft_cost}
    return recipe(name=name, **body)


def _answers(engine: Engine, prompts: list[list[int]], most: int, path: Path) -> Answers:
    """Read from `path`, or written there."""
    if not path.is_file():
        ids = Batch(engine).target(prompts, most).ids
        stack = Stack.of_backend(engine.target)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as fresh:
            torch.save({"ids": ids, "states": states_before(stack, prompts, ids)}, fresh)
    held = torch.load(path, weights_only=True)
    return Answers(prompts, held["ids"], held["states"])


def replays(
    engine: Engine, answers: Answers, passes: PassCosts, draft_cost: float
) -> dict[str, list[Spent]]:
    """By arm, along each answer."""
    unrolled: dict[tuple[float, ...], Unrolled] = {}
    made = dict[str, list[Spent]]()
    for name in engine.arms:
        strategy = engine.strategy(name)
        assert isinstance(strategy, SpeculativeDecoding)
        models = models_of(strategy.drafter)
        assert models is not None
        for model in models:
            key = _key(model)
            if key not in unrolled:
                unrolled[key] = Unrolled(model.head, answers.states, answers.ids)
        made[name] = [
            _replayed(engine, strategy, unrolled, answers, row, passes, draft_cost)
            for row in range(len(answers.ids))
        ]
    return made


def _key(model: RecurrentDrafter) -> tuple[float, ...]:
    """The same for drafters of the same weights, of which every arm has its own."""
    return tuple(model.head.norm.tolist())


def _replayed(
    engine: Engine,
    strategy: SpeculativeDecoding,
    unrolled: Mapping[tuple[float, ...], Unrolled],
    answers: Answers,
    row: int,
    passes: PassCosts,
    draft_cost: float,
) -> Spent:
    target, prompt, answer = engine.target, answers.prompts[row], answers.ids[row]
    widths, models = list[int](), list[Known]()

    def known(model: RecurrentDrafter) -> Known:
        guesses = partial(unrolled[_key(model)], row)
        made = Known(lambda c, k: [g.token for g in guesses(len(c) - len(prompt), k)], target)
        models.append(made)
        return made

    drafter = over(strategy.drafter, known)
    inner = along(drafter, target, prompt, answer).draft

    def draft(at: int, k: int) -> Sequence[int]:
        drafted = inner(at, k)
        widths.append(len(drafted) + 1)
        return drafted

    seconds = draft_cost * passes(1)
    made = replay(answer, draft, strategy.length, [], seconds, passes)
    undrafted = made.rounds - len(widths)  # the last one, which has no room, or all
    if undrafted:
        drafter.commit([*prompt, *answer[:-1]])  # as the loop does before it
    widths += [1] * undrafted
    steps = sum(model.calls for model in models)
    cost = sum(passes(width) for width in widths) / passes(1) + draft_cost * steps
    return Spent(len(answer) - 1, made.rounds, steps, cost)


def print_tables(
    spent: Mapping[str, Mapping[str, list[Spent]]],
    oracles: Mapping[str, Iterable[str]],
    title: str,
) -> None:
    """spent: by arm and task.
    oracles: the arms that each takes the cheapest of, for every query.
    """
    tasks = list(spent[AUTOREGRESSIVE])
    every: dict[str, list[Spent]] = {
        name: [one for task in tasks for one in each[task]] for name, each in spent.items()
    }
    cost = {name: np.array([one.cost for one in each]) for name, each in every.items()}
    for name, among in oracles.items():
        cost[name] = np.min([cost[arm] for arm in among], axis=0)
    tokens = np.array([one.tokens for one in every[AUTOREGRESSIVE]])
    task_of = np.array([task for task in tasks for _ in spent[AUTOREGRESSIVE][task]])
    rows, by_task = [], []
    for name, own in cost.items():
        counts = ["-"] * 3
        if name in every:
            rounds = sum(one.rounds for one in every[name])
            steps = sum(one.steps for one in every[name])
            counts = [str(rounds), f"{tokens.sum() / rounds:.2f}", f"{steps / rounds:.2f}"]
        low, high = interval(cost[BASE], own)
        ratio = f"{cost[BASE].sum() / own.sum():.3f} ({low:.3f} to {high:.3f})"
        rows.append([name, *counts, f"{tokens.sum() / own.sum():.2f}x", ratio])
        parts = [(tokens[task_of == task].sum() / own[task_of == task].sum()) for task in tasks]
        by_task.append([name, *(f"{part:.2f}" for part in parts)])
    said = f"{len(tokens)} answers, {tokens.sum()} tokens after the first; {title}"
    for table in [
        *rich_tables(said, HEADINGS, rows, WIDTH),
        *rich_tables("speed-up by task", ["arm", *tasks], by_task, WIDTH),
    ]:
        Console(width=WIDTH).print(table)


def interval(one: np.ndarray, other: np.ndarray, draws: int = 4000) -> tuple[float, float]:
    """95% of sum(one) / sum(other), the answers drawn with replacement."""
    rows = np.random.default_rng(0).integers(0, len(one), (draws, len(one)))
    low, high = np.quantile(one[rows].sum(1) / other[rows].sum(1), [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
