"""Which questions are asked: all of a file, or the same few of each task."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from collect.queries import Query, ordered, read_queries
from decoders.common.errors import DraftpickError, NoSuchName

from .quality import check_measures


def load_questions(
    paths: Iterable[str | Path],
    limit: int | None = None,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
) -> list[Query]:
    """Read question files and keep `limit` questions a task, or all of them.

    Raises DraftpickError for a missing or bad file, a repeated id, a task that no question has,
    or one that is to be judged by an unknown measure.
    """
    if limit is not None and limit < 1:
        raise DraftpickError(f"--limit must be at least 1 question a task, not {limit}")
    queries = read_queries(list(paths))
    found = ordered(query.task for query in queries)
    for task in tasks or ():
        if task not in found:
            raise NoSuchName("task", task, found)
    queries = [query for query in queries if not tasks or query.task in tasks]
    for task in {query.task for query in queries}:
        check_measures(task)
    return select(queries, limit, seed)


def select(queries: Sequence[Query], limit: int | None, seed: int) -> list[Query]:
    """At most `limit` questions a task, spread evenly over its categories, in file order.

    The choice depends on the seed and the ids alone, so a larger limit keeps every question of a
    smaller one.
    """
    if limit is None:
        return list(queries)
    groups: dict[str, dict[str, list[Query]]] = defaultdict(lambda: defaultdict(list))
    for query in queries:
        groups[query.task][query.category or ""].append(query)
    kept: set[str] = set()
    for task, categories in groups.items():
        drawn = []
        for category, members in sorted(categories.items()):
            members.sort(key=lambda query: query.id)
            random.Random(f"{seed}/{task}/{category}").shuffle(members)
            drawn += [(rank, category, query.id) for rank, query in enumerate(members)]
        # Sorting by rank first takes one question of every category before a second of any.
        kept.update(identity for _, _, identity in sorted(drawn)[:limit])
    return [query for query in queries if query.id in kept]


def spec_bench_category(query_task: str, category: str | None) -> str:
    """The category by which Spec-Bench's scripts find rows: mt_bench's eight, or the task."""
    if query_task == "mt_bench":
        return category or query_task
    return "math_reasoning" if query_task == "math" else query_task
