"""What a collection says at a glance: the mean reward of every arm on every task, at each
temperature and load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collect.queries import OVERALL, ordered, text_name
from decoders.zoo.catalogue import trained_on

from .rewards import Reward, default, get
from .store.collection import Collection
from .table import NoRewards, only_alone, reward_table
from .table_options import TableOptions

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ArmSummary:
    """mean: by task and "overall", over the queries on which the arm did not fail.
    wins: the share of queries on which it is the best arm (ties shared).
    errors: rows without numbers.
    """

    mean: dict[str, float | None]
    wins: float
    errors: int


@dataclass(frozen=True)
class Summary:
    """queries: rewarded ones, by task and "overall".
    arms: by name. best_fixed: the one with the best mean overall.
    oracle: mean reward of choosing the best arm for every query.
    error_examples: up to three, each a different error.
    answers_at_once: that are written at the same time.
    repetitive_share: of the target's answers that repeat themselves to the end.
    draws: answers that were drawn for each query, over which rewards are means; 1 at temperature 0.
    optimistic: whether the oracle chooses by luck in part (`RewardTable.lucky`).
    """

    folder: str
    target: str
    reward: str
    temperature: float
    repetitive_share: float
    queries: dict[str, int]
    arms: dict[str, ArmSummary]
    best_fixed: str
    oracle: dict[str, float | None]
    error_examples: list[str]
    answers_at_once: int = 1
    draws: int = 1
    optimistic: bool = False


def summarise_all(
    collection: Collection,
    reward: str | Reward | None = None,
    alpha: float = 0.5,
    on_nothing: Callable[[str], None] = lambda why: None,
) -> list[Summary]:
    """One for each load and temperature of which the reward says something, temperature 0 without
    others first.

    on_nothing: called with why there is none for one of them. Raises NoRewards where there is none
        at all.
    """
    stored = collection.manifest.identity
    reward = default(collection.manifest.costs) if reward is None else reward
    if only_alone(collection, get(reward)):
        return [summarise(collection, reward, alpha)]
    found = list[Summary]()
    for answers, temperature in itertools.product(stored.at_once, stored.temperatures):
        try:
            found.append(summarise(collection, reward, alpha, temperature, answers))
        except NoRewards as error:
            on_nothing(f"at temperature {temperature:g} with {answers} answers at once {error}")
    return found or [summarise(collection, reward, alpha)]


def summarise(
    collection: Collection,
    reward: str | Reward | None = None,
    alpha: float = 0.5,
    temperature: float = 0.0,
    at_once: int = 1,
) -> Summary:
    """Mean rewards of a collection at one temperature and load; raises DraftpickError as
    `reward_table` does."""
    options = TableOptions(
        reward, alpha, temperatures=(temperature,), features=(), at_once=(at_once,)
    )
    table = reward_table(collection, options)
    draws = collection.manifest.identity.draws if temperature > 0 else 1
    queries, repetitive = set(table.query_of), collection.repetitive
    rows = [
        row
        for draw in range(draws)
        for arms in collection.outcomes_at(temperature, at_once - 1, draw).values()
        for row in arms.values()
    ]
    tasks = np.array(table.tasks)
    masks = {task: tasks == task for task in ordered(table.tasks)} | {
        OVERALL: np.ones(len(tasks), dtype=bool)
    }
    top = np.nanmax(table.rewards, axis=1)  # [n]; no row is all-nan
    winners = table.rewards == top[:, None]  # [n, A]
    wins = (winners / winners.sum(axis=1, keepdims=True)).mean(axis=0)
    arms = {
        arm: ArmSummary(
            mean={task: _mean(table.rewards[mask, column]) for task, mask in masks.items()},
            wins=float(wins[column]),
            errors=sum(row.arm == arm and row.error is not None for row in rows),
        )
        for column, arm in enumerate(table.arms)
    }
    first: dict[str, str] = {}
    for row in rows:
        if row.error:
            first.setdefault(row.error, f"{row.query_id}, {row.arm}: {row.error}")
    return Summary(
        folder=str(collection.folder),
        target=collection.manifest.identity.target,
        reward=table.reward_name,
        temperature=temperature,
        repetitive_share=sum(
            key.temperature == temperature and key.query in queries for key in repetitive
        )
        / (draws * len(table)),
        queries={task: int(mask.sum()) for task, mask in masks.items()},
        arms=arms,
        best_fixed=max(arms, key=lambda arm: _or_worst(arms[arm].mean[OVERALL])),
        oracle={task: _mean(top[mask]) for task, mask in masks.items()},
        error_examples=list(first.values())[:3],
        answers_at_once=at_once,
        draws=draws,
        optimistic=table.lucky,
    )


def cautions(collection: Collection, reward: str | Reward | None = None) -> list[str]:
    """Sentences on what its rewards leave out.

    reward: None for the collection's default.
    """
    costs = collection.manifest.costs
    asked = get(default(costs) if reward is None else reward)
    known = list(_seen(collection))
    if not asked.needs_costs or not costs.verify_s or costs.repeats:
        return known
    return [
        *known,
        "the costs of passes, drafts and rounds were measured once here, so that no interval "
        "includes their error; a new collection measures them several times",
    ]


def _seen(collection: Collection) -> Iterator[str]:
    """A sentence for each arm whose drafter's card says that it was trained on some of the
    queries."""
    texts = [text_name(query.turns[0]) for query in collection.queries.values()]
    for arm in collection.manifest.arms:
        trained = {text for name in _drafters(arm.recipe) for text in trained_on(name)}
        seen = sum(text in trained for text in texts)
        if seen:
            yield (
                f"the drafter of {arm.name} was trained on {seen} of these {len(texts)} queries, "
                "where it looks better than on others; collect queries that it has not seen"
            )


def _drafters(recipe: Mapping[str, Any]) -> Iterator[str]:
    for field, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _drafters(value)
        elif field == "drafter" and isinstance(value, str):
            yield value


def render(summary: Summary, width: int) -> list[Table]:
    """The summary as a table for a terminal of `width` columns, in parts where it is wider.

    The best arm of every column stands out.
    """
    from decoders.common.terminal import tables

    columns = list(summary.queries)
    headings = ["arm", *(f"{task}\n{summary.queries[task]}" for task in columns)]
    rows = []
    best = {
        task: max(_or_worst(arm.mean[task]) for arm in summary.arms.values()) for task in columns
    }
    for name, arm in summary.arms.items():
        cells = [_cell(arm.mean[task], arm.mean[task] == best[task]) for task in columns]
        errors = f"[red]{arm.errors}[/red]" if arm.errors else "0"
        rows.append([name, *cells, f"{arm.wins:.0%}", errors])
    oracle = "oracle (optimistic)" if summary.optimistic else "oracle"
    rows.append([oracle, *[_cell(summary.oracle[task]) for task in columns], "", ""])
    at = f" at temperature {summary.temperature:g}" if summary.temperature else ""
    load = summary.answers_at_once
    at += f", {load} answers at once" if load > 1 else ""
    at += f", {summary.draws} draws a query" if summary.draws > 1 else ""
    title = f"Mean reward ({summary.reward}) of {summary.target}{at}"
    return tables(title, [*headings, "best for", "errors"], rows, width, last_apart=True)


def _mean(values: Any) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _or_worst(value: float | None) -> float:
    return -np.inf if value is None else value


def _cell(value: float | None, best: bool = False) -> str:
    if value is None:
        return "-"
    return f"[bold green]{value:.3f}[/bold green]" if best else f"{value:.3f}"
