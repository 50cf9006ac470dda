"""What a policy earns of another reward than the one that it was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decoders.common.terminal import tables

if TYPE_CHECKING:
    from rich.table import Table

    from collect.store.collection import Collection
    from collect.table_options import TableOptions
    from policies import Evaluation, RewardTable


def judged_rows(
    collection: Collection,
    reward: str,
    options: TableOptions,
    table: RewardTable,
    held: RewardTable | None,
) -> RewardTable:
    """The held-out queries' rows, with what the policy reads; all the queries where none are held
    out.

    options, table: what is trained on. A reward of greedy answers on their own is judged on those.

    Raises DraftpickError for an unknown reward, and one that was not collected; PolicyError where
    no row of these queries is left.
    """
    from collect import rewards as known
    from collect.table import only_alone, reward_table
    from policies import PolicyError

    asked = replace(
        options,
        reward=reward,
        arms=table.arms,
        embedder=table.embedder,
        features=table.feature_names,
    )
    if only_alone(collection, known.get(reward)):
        asked = replace(asked, temperatures=None, at_once=None)
    found = reward_table(collection, asked)
    queries = set((table if held is None else held).query_of)
    rows = [i for i, query in enumerate(found.query_of) if query in queries]
    if not rows:
        raise PolicyError(f"no held-out query has the reward {reward!r}; collect more")
    return found.rows(rows)


def judged_json(found: Evaluation, reward: str) -> dict[str, Any]:
    rows = [*found.rows, found.gain]
    return {
        "reward": reward,
        "best_fixed": found.best_fixed,
        "values": {row.name: {"mean": row.mean, "ci95": [row.low, row.high]} for row in rows},
        "by_task": found.by_task,
    }


def judged_tables(found: Evaluation, reward: str, width: int) -> list[Table]:
    """For a terminal of `width` columns."""
    named = {"greedy": "policy (greedy)", "dynamic": "policy (sampled)"}
    rows = [
        [named.get(row.name, row.name), f"{row.mean:.4f}", f"{row.low:.4f} .. {row.high:.4f}"]
        for row in [*found.rows, found.gain]
    ]
    title = f"The same policy judged by {reward}"
    return tables(title, ["choice", "reward", "interval"], rows, width, last_apart=True)
