"""The two tables of a collection: their columns, and how the committed rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from decoders.common.errors import Damaged
from decoders.common.wording import first_line

from ..records import OutcomeRow, QueryRow
from .manifest import read_manifest

if TYPE_CHECKING:
    import datasets

KINDS = {  # of columns, by the types of the records' fields
    "str": pa.string(),
    "float": pa.float64(),
    "int": pa.int32(),
    "bool": pa.bool_(),
    "tuple[str, ...]": pa.list_(pa.string()),
    "tuple[int, ...]": pa.list_(pa.int32()),
    "tuple[bool, ...]": pa.list_(pa.bool_()),
    "NDArray[np.float32]": pa.list_(pa.float32()),
}
WIDE = ("parameters", "seed")  # whole numbers that 32 bits may not hold


def _schema(record: type) -> pa.Schema:
    """A column for each field."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(record)}
    return pa.schema(
        [(name, pa.int64() if name in WIDE else KINDS[kind]) for name, kind in kinds.items()]
    )


QUERIES_SCHEMA, OUTCOMES_SCHEMA = _schema(QueryRow), _schema(OutcomeRow)


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
