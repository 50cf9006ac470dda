"""Arms that draft from earlier answers, for which the order of the queries matters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from decoders.common.errors import DraftpickError

from ..records import OutcomeRow, QueryRow
from ..store.tables import read_table
from .batch import Prompt, SweepOptions
from .executor import Executor, Here
from .protocols import BatchDecoder, SweepEngine


def one_by_one(
    engine: SweepEngine, names: Sequence[str], executor: Executor, options: SweepOptions
) -> Here | None:
    """The executor, where one of these arms drafts from earlier answers, else None. Raises
    DraftpickError where the queries could not be collected in their order."""
    found = next((name for name in names if engine.arms[name].reads_earlier), None)
    if found is None:
        return None
    words = f"arm {found!r} drafts from earlier answers, so that the queries' order matters"
    if not isinstance(executor, Here):
        raise DraftpickError(f"{words}; leave --engine ray out, or that arm")
    if options.measure:
        raise DraftpickError(f"{words}, and --measure times them in another; leave one of them out")
    return executor


def in_order(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """Batches of the prompts as they come."""
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]


def keep_stored(batch: BatchDecoder, folder: Path) -> None:
    """Tell the batch what a folder holds already, in the order of its rows."""
    columns = ("query_id", "temperature", "running", "draw", "target_ids")
    keep_rows(
        batch,
        _stored(folder, "queries", ("query_id", "prompt_ids")),
        _stored(folder, "outcomes", columns),
    )


def _stored(folder: Path, table: str, columns: Sequence[str]) -> list[Any]:
    return [SimpleNamespace(**row) for row in read_table(folder, table, columns).to_pylist()]


def keep_rows(
    batch: BatchDecoder, queries: Sequence[QueryRow], outcomes: Sequence[OutcomeRow]
) -> None:
    """The same for rows that are stored now."""
    prompts = {row.query_id: list(row.prompt_ids) for row in queries}
    told = set[tuple[str, float]]()
    for row in outcomes:
        key = row.query_id, row.temperature
        first = not row.running and not row.draw  # each query was asked once, for the arms
        if first and row.target_ids and key not in told:
            told.add(key)
            batch.keep(prompts[row.query_id], list(row.target_ids), row.temperature)
