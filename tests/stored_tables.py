"""Reward tables of stored collections, opened by folder."""

from pathlib import Path
from typing import Any

from collect.store import tables
from collect.store.collection import Collection
from collect.table import LeftOut, read_rewards
from collect.table_options import TableOptions
from policies.records import RewardTable


def table_of(folder: Path, *given: Any, **named: Any) -> RewardTable:
    """A collection's table; the options are those of `TableOptions`."""
    return rows_of(folder, *given, **named)[0]


def rows_of(folder: Path, *given: Any, **named: Any) -> tuple[RewardTable, LeftOut]:
    """The same, with what was left out."""
    return read_rewards(Collection.open(folder), TableOptions(*given, **named))


def rows(folder: Path, *more: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Outcomes by query, arm and these columns, which tell them apart."""
    stored = tables.read_table(folder, "outcomes").to_pylist()
    keyed = {tuple(row[name] for name in ("query_id", "arm", *more)): row for row in stored}
    assert len(keyed) == len(stored)
    return keyed
