"""A collection on disk: two Arrow tables in atomic Parquet shards, and a manifest.

    DIR/manifest.json           what was collected, with what, where
    DIR/queries/00000.parquet   rows of whole queries ...
    DIR/outcomes/00000.parquet  ... and all of their arms, temperatures, draws and loads, under the
                                same number

A shard pair holds whole queries. The outcomes file is written last and commits the pair: a queries
file without its partner is what a kill left behind, is never read, and is overwritten. So at any
moment the folder holds exactly one row per (query, arm, temperature, load, draw) of the queries
that are done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from decoders.common.errors import DraftpickError
from decoders.common.files import replacing
from decoders.common.identity import identity as identity_of
from decoders.common.locks import LOCK, sole_writer
from decoders.costs.measured import Costs

from ..records import ArmInfo, OutcomeRow, QueryRow
from .manifest import FORMAT, MANIFEST, Identity, Manifest, read_manifest, timed_otherwise
from .tables import OUTCOMES_SCHEMA, QUERIES_SCHEMA, shards


class Store:
    """The one writer of a folder; a context manager that holds its lock.

    Raises DraftpickError when another process writes there, when the folder holds something else,
    or when the disk refuses.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with explained(self.folder):
            if self.folder.is_dir() and not (self.folder / MANIFEST).exists():
                _refuse_foreign(self.folder)
            self._held.enter_context(sole_writer(self.folder))
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()

    def begin(
        self,
        identity: Identity,
        describe: Callable[[], tuple[tuple[ArmInfo, ...], Costs]],
        session: dict[str, Any],
        embedder: str | None = None,
    ) -> Manifest:
        """Start the folder, or check that it may go on; `session` is added to its manifest.

        embedder: the space that policies are to read, None for what the folder says so far.
        describe: measures the arms and costs, called for a new folder only.

        Raises DraftpickError that lists every field in which a folder that exists differs, and
        where its arms were timed by another machine or other passes than they would be now.
        """
        if (self.folder / MANIFEST).exists():
            stored = read_manifest(self.folder)
            _require_same(self.folder, stored.identity, identity)
            identity = stored.identity  # the names that its rows have
            timed_by = timed_otherwise(stored.sessions, session)
            if identity.measured and timed_by is not None:
                raise DraftpickError(
                    f"{self.folder} was timed by {timed_by}, and this run would be by "
                    f"{session['timed_by']}; use another --out, so that seconds stay comparable"
                )
            arms, costs, sessions = stored.arms, stored.costs, stored.sessions
            embedder = stored.embedder if embedder is None else embedder
        else:
            (arms, costs), sessions = describe(), ()
        if embedder is None or identity_of(embedder) == identity_of(identity.embedder):
            embedder = ""
        manifest = Manifest(identity, arms, costs, (*sessions, session), embedder)
        self._remove_leftovers()
        text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2, ensure_ascii=False)
        write_file(self.folder / MANIFEST, lambda file: file.write((text + "\n").encode("utf-8")))
        return manifest

    def append(self, queries: Sequence[QueryRow], outcomes: Sequence[OutcomeRow]) -> None:
        """Commit whole queries with all of their arms, or nothing.

        Raises DraftpickError when the disk refuses; what was stored before stays whole.
        """
        numbers = [int(path.stem) for path in shards(self.folder, "outcomes")]
        name = f"{max(numbers, default=-1) + 1:05d}.parquet"
        for table, schema, rows in (
            ("queries", QUERIES_SCHEMA, queries),
            ("outcomes", OUTCOMES_SCHEMA, outcomes),
        ):
            content = pa.Table.from_pylist([_plain(row, schema) for row in rows], schema=schema)
            write_file(self.folder / table / name, partial(pq.write_table, content))

    def _remove_leftovers(self) -> None:
        """Files that a kill left half-written; safe, as the lock makes this the only writer there.
        Embeddings have another."""
        with explained(self.folder):
            for place in (self.folder, self.folder / "queries", self.folder / "outcomes"):
                for leftover in place.glob("*.tmp"):
                    leftover.unlink()


def _plain(row: QueryRow | OutcomeRow, schema: pa.Schema) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(row, name) for name in schema.names}
    if values.get("embedding") is not None:
        values["embedding"] = values["embedding"].tolist()
    return values


def _require_same(folder: Path, stored: Identity, asked: Identity) -> None:
    differences = [
        f"{name} (there {getattr(stored, name)!r}, now {getattr(asked, name)!r})"
        for name in stored.differences(asked)
    ]
    if differences:
        raise DraftpickError(
            f"{folder} was collected with other settings: {'; '.join(differences)}. Use another "
            "--out, or the same settings to go on"
        )


def _refuse_foreign(folder: Path) -> None:
    """A folder without a manifest must be empty but for what a kill before the first one leaves."""
    foreign = [
        path.name for path in folder.iterdir() if path.name != LOCK and path.suffix != ".tmp"
    ]
    if foreign:
        raise DraftpickError(
            f"{folder} is not empty and holds no {MANIFEST}; use an empty or new folder as --out"
        )


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file; the system's refusals are explained."""
    with explained(path), replacing(path) as file:
        write(file)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a sentence."""
    try:
        yield
    except OSError as error:
        raise DraftpickError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another --out, "
            "then run the same command again (what is stored so far is kept)"
        ) from error
