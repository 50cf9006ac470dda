"""The two tables of a collection: their columns, and how the committed rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from decoders.common.errors import Damaged
from decoders.common.wording import first_line

from .manifest import read_manifest

if TYPE_CHECKING:
    import datasets

QUERIES_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("task", pa.string()),
        ("category", pa.string()),
        ("source", pa.string()),
        ("turns", pa.list_(pa.string())),
        ("reference", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("embedding", pa.list_(pa.float32())),
        ("embedder", pa.string()),
        ("target_text", pa.string()),
        ("max_new_tokens", pa.int32()),
        ("group", pa.string()),
    ]
)
OUTCOMES_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("arm", pa.string()),
        ("temperature", pa.float64()),
        ("running", pa.int32()),
        ("draw", pa.int32()),
        ("rouge_l", pa.float64()),
        ("parameters", pa.int64()),
        ("rounds", pa.int32()),
        ("drafted", pa.int32()),
        ("accepted", pa.int32()),
        ("calls", pa.int32()),
        ("widths", pa.list_(pa.int32())),
        ("new_tokens", pa.int32()),
        ("repetitive", pa.bool_()),
        ("prefill_s", pa.float64()),
        ("decode_s", pa.float64()),
        ("measured_tokens", pa.int32()),
        ("measured_prefill_s", pa.float64()),
        ("measured_decode_s", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("seed", pa.int64()),
        ("error", pa.string()),
        ("output_ids", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("target_ids", pa.list_(pa.int32())),
        ("agree", pa.list_(pa.bool_())),
    ]
)


@dataclass(frozen=True)
class Tables:
    """The two tables as Hugging Face data sets, ready to map, filter or push."""

    queries: datasets.Dataset
    outcomes: datasets.Dataset


def read_table(folder: str | Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The committed rows of "queries" or "outcomes"; columns: those to read, None for all.

    Raises Damaged naming the shard that cannot be read and what to do.
    """
    folder = Path(folder)
    schema = QUERIES_SCHEMA if table == "queries" else OUTCOMES_SCHEMA
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    parts = []
    for shard in shards(folder, "outcomes"):  # an outcomes shard is what commits its pair
        path = folder / table / shard.name
        try:
            parts.append(pq.read_table(path, columns=schema.names).cast(schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged(
                f"{path} is damaged ({first_line(error)}); delete {folder}/outcomes/{shard.name} "
                "and collect into the same folder again: only its queries are collected again"
            ) from error
    return pa.concat_tables(parts) if parts else schema.empty_table()


def load(folder: str | Path) -> Tables:
    """Both tables as `datasets.Dataset`; raises DraftpickError where there is no collection."""
    import datasets

    read_manifest(folder)
    return Tables(
        queries=datasets.Dataset(read_table(folder, "queries")),
        outcomes=datasets.Dataset(read_table(folder, "outcomes")),
    )


def shards(folder: Path, table: str) -> list[Path]:
    return sorted(path for path in (folder / table).glob("*.parquet") if path.stem.isdigit())
