"""A collection on disk: two Arrow tables in atomic Parquet shards, and a manifest.

    DIR/manifest.json           what was collected, with what, where
    DIR/queries/00000.parquet   rows of whole queries ...
    DIR/outcomes/00000.parquet  ... and all of their arms, temperatures and loads, under the same
                                number

A shard pair holds whole queries. The outcomes file is written last and commits the pair: a queries
file without its partner is what a kill left behind, is never read, and is overwritten. So at any
moment the folder holds exactly one row per (query, arm, temperature, load) of the queries that are
done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from decoders.common.errors import Damaged, DraftpickError
from decoders.common.files import replacing
from decoders.costs.measured import Costs

from ..records import ArmInfo, OutcomeRow, QueryRow

if TYPE_CHECKING:
    import datasets

FORMAT = "draftpick-rewards-2"  # raised with a column, and with what ROUGE-L or sizes count
MANIFEST = "manifest.json"
LOCK = ".lock"

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
    ]
)
OUTCOMES_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("arm", pa.string()),
        ("temperature", pa.float64()),
        ("running", pa.int32()),
        ("rouge_l", pa.float64()),
        ("parameters", pa.int64()),
        ("rounds", pa.float64()),
        ("drafted", pa.float64()),
        ("accepted", pa.float64()),
        ("calls", pa.float64()),
        ("how", pa.string()),
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
class Identity:
    """What must stay the same for rows to belong in one table; checked when a sweep resumes.

    embedder: the target's own space, in which every collection stores its queries.
    temperature: of the autoregressive arm's sampled answer that is scored against its greedy one.
    seed: of sampled answers.
    similarity: whether drafters also wrote on their own; `rouge_l` is None where not.
    temperatures: those at which every arm was collected.
    at_once: as of SweepOptions.
    """

    target: str
    embedder: str
    arms: tuple[str, ...]
    arms_fingerprint: str
    max_new_tokens: int
    temperature: float
    seed: int
    measured: bool
    similarity: bool = True
    temperatures: tuple[float, ...] = (0.0,)
    at_once: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Manifest:
    """identity: see there.
    arms, costs: what rewards need.
    sessions: the provenance of every run that wrote to the folder, the first one first (its machine
        is the one the costs are of); `timed_by` as of the engine.
    embedder: the space that policies are to read; "" for the target's own, identity.embedder.
    """

    identity: Identity
    arms: tuple[ArmInfo, ...]
    costs: Costs
    sessions: tuple[dict[str, Any], ...]
    embedder: str = ""

    @property
    def reads(self) -> str:
        """The embedder that `draftpick train` reads by default."""
        return self.embedder or self.identity.embedder


@dataclass(frozen=True)
class Tables:
    """The two tables as Hugging Face data sets, ready to map, filter or push."""

    queries: datasets.Dataset
    outcomes: datasets.Dataset


class Store:
    """The one writer of a folder; a context manager that holds its lock.

    Raises DraftpickError when another process writes there, when the folder holds something else,
    or when the disk refuses.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = FileLock(self.folder / LOCK)

    def __enter__(self) -> Self:
        with _explained(self.folder):
            if self.folder.is_dir() and not (self.folder / MANIFEST).exists():
                _refuse_foreign(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise DraftpickError(
                    f"another process is collecting into {self.folder}; wait for it, or use "
                    "another --out"
                ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

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
        embedder = "" if embedder in (None, identity.embedder) else embedder
        manifest = Manifest(identity, arms, costs, (*sessions, session), embedder or "")
        self._remove_leftovers()
        text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2, ensure_ascii=False)
        write_file(self.folder / MANIFEST, lambda file: file.write((text + "\n").encode("utf-8")))
        return manifest

    def append(self, queries: Sequence[QueryRow], outcomes: Sequence[OutcomeRow]) -> None:
        """Commit whole queries with all of their arms, or nothing.

        Raises DraftpickError when the disk refuses; what was stored before stays whole.
        """
        numbers = [int(path.stem) for path in _shards(self.folder, "outcomes")]
        name = f"{max(numbers, default=-1) + 1:05d}.parquet"
        for table, schema, rows in (
            ("queries", QUERIES_SCHEMA, queries),
            ("outcomes", OUTCOMES_SCHEMA, outcomes),
        ):
            content = pa.Table.from_pylist([_plain(row, schema) for row in rows], schema=schema)
            write_file(self.folder / table / name, partial(pq.write_table, content))

    def _remove_leftovers(self) -> None:
        """Files that a kill left half-written; safe, as the lock makes this the only writer."""
        with _explained(self.folder):
            for leftover in self.folder.rglob("*.tmp"):
                leftover.unlink()


def timed_otherwise(sessions: Sequence[dict[str, Any]], session: dict[str, Any]) -> str | None:
    """What the folder's costs were measured by, where that is not what `session` runs by; None
    where it is, or where one of them does not say (endpoints)."""
    first, now = sessions[0].get("timed_by"), session.get("timed_by")
    return first if first and now and first != now else None


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a collection; raises DraftpickError where there is none, or a damaged one."""
    path = Path(folder) / MANIFEST
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DraftpickError(
            f"{folder} holds no collected rewards ({MANIFEST} is missing); make them with "
            f"`draftpick collect --out {folder}`"
        ) from None
    except OSError as error:
        raise DraftpickError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError:
        raise Damaged(f"{path} is damaged: not JSON; collect again into another --out") from None
    try:
        if record["format"] != FORMAT:
            raise DraftpickError(
                f"{path} has the format {record['format']!r}, and this version reads {FORMAT!r} "
                "alone; collect again into another --out"
            )
        return Manifest(
            identity=_identity(record["identity"]),
            arms=tuple(ArmInfo(**arm) for arm in record["arms"]),
            costs=Costs.from_json(record["costs"]),
            sessions=tuple(record["sessions"]),
            embedder=str(record["embedder"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged: {error} is wrong or missing; collect again into another --out"
        ) from error


def _identity(record: dict[str, Any]) -> Identity:
    lists = {name: tuple(each) for name, each in record.items() if isinstance(each, list)}
    return Identity(**{**record, **lists})


def read_table(folder: str | Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The committed rows of "queries" or "outcomes"; columns: those to read, None for all.

    Raises Damaged naming the shard that cannot be read and what to do.
    """
    folder = Path(folder)
    schema = QUERIES_SCHEMA if table == "queries" else OUTCOMES_SCHEMA
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    parts = []
    for shard in _shards(folder, "outcomes"):  # an outcomes shard is what commits its pair
        path = folder / table / shard.name
        try:
            parts.append(
                pq.read_table(path, columns=schema.names).select(schema.names).cast(schema)
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged(
                f"{path} is damaged ({_first_line(error)}); delete {folder}/outcomes/{shard.name} "
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


def _shards(folder: Path, table: str) -> list[Path]:
    return sorted(path for path in (folder / table).glob("*.parquet") if path.stem.isdigit())


def _plain(row: QueryRow | OutcomeRow, schema: pa.Schema) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(row, name) for name in schema.names}
    if values.get("embedding") is not None:
        values["embedding"] = values["embedding"].tolist()
    return values


def _require_same(folder: Path, stored: Identity, asked: Identity) -> None:
    differences = [
        f"{field.name} (there {getattr(stored, field.name)!r}, now {getattr(asked, field.name)!r})"
        for field in fields(Identity)
        if getattr(stored, field.name) != getattr(asked, field.name)
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
    """As `replacing`; the system's refusals are explained."""
    with _explained(path), replacing(path) as file:
        write(file)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a sentence."""
    try:
        yield
    except OSError as error:
        raise DraftpickError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another --out, "
            "then run the same command again (what is stored so far is kept)"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
