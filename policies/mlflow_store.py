"""MLflow stores: the default one, a check that fails fast, clean global state, runs of our own."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from urllib.request import url2pathname

from decoders.common.loggers import quiet
from decoders.common.secrets import masked
from decoders.common.wording import in_words

from .errors import PolicyError

if TYPE_CHECKING:
    from mlflow import MlflowClient

SQLITE = "sqlite:///"
SQLITE_QUOTED = "sqlite+pysqlite:///"  # the same to SQLAlchemy
# MLflow and its migrations say a dozen lines when they make a database, and of an error that is
# raised as well a page of traceback.
QUIET = {
    "mlflow": logging.ERROR,
    "alembic": logging.ERROR,
    "mlflow.store.db.utils": logging.CRITICAL,
}
ADDRESSES = (  # of artifacts, in MLflow's tables
    ("experiments", "artifact_location"), ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"), ("model_versions", "source"),
    ("model_versions", "storage_location"),
)  # fmt: skip
PING_S = 4  # seconds that a first request to a tracking server may take
OUTER = "MLFLOW_RUN_ID"  # of the environment: the run that a caller has begun, as `mlflow run` does
LIMIT_S = 8.0  # seconds after which a store that says nothing counts as unreachable


def default_uri() -> str:
    """MLFLOW_TRACKING_URI where it is set, else mlruns/mlflow.db under the working directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(Path("mlruns", "mlflow.db"))


def sqlite_uri(path: str | Path) -> str:
    """The URI of a database file, whatever characters its folders' names have.

    SQLAlchemy decodes what stands before a question mark, so that % and ? are quoted. MLflow makes
    the folder of an SQLite file by the name as it is quoted, unless the driver is named.
    """
    plain = str(Path(path).absolute())
    quoted = plain.replace("%", quote("%")).replace("?", quote("?"))
    return f"{SQLITE if quoted == plain else SQLITE_QUOTED}{quoted}"


def sqlite_path(uri: str) -> Path | None:
    """The database file of an SQLite URI, None for any other store."""
    for prefix in (SQLITE, SQLITE_QUOTED):
        if uri.startswith(prefix):
            return Path(unquote(uri.removeprefix(prefix).partition("?")[0]))
    return None


@contextmanager
def using(uri: str | None, create: bool = True) -> Iterator[str]:
    """Point MLflow at the store, checked to answer, and put MLflow's settings back afterwards.

    Yields the URI.

    create: make an SQLite store that does not exist.

    Raises PolicyError, within seconds, for a store that cannot be reached.
    """
    uri = uri or default_uri()
    # MLflow reports usage over the network unless told not to; nothing here may phone home.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # a few small files
    import mlflow

    path = sqlite_path(uri)
    if path is not None:
        _check_file(uri, path, create)
    was_set = mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]
    before = mlflow.get_tracking_uri() if was_set else None
    with quiet(QUIET), _restored("MLFLOW_TRACKING_URI"):
        if path is not None:
            if not path.exists():
                _make(uri, path)
            _follow(uri, path)
        _ping(uri, LIMIT_S if path is None else None)
        mlflow.set_tracking_uri(uri)
        try:
            yield uri
        finally:
            mlflow.set_tracking_uri(before or "")


@contextmanager
def _restored(*names: str) -> Iterator[None]:
    """These variables of the environment are afterwards as they were."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _check_file(uri: str, path: Path, create: bool) -> None:
    """MLflow retries a broken database for minutes; these are the cases worth saying at once."""
    try:
        if not path.exists():
            if not create:
                raise PolicyError(
                    f"there is no MLflow store at {uri}; train there first or give --tracking-uri"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
        head = b""
        if path.exists():
            with path.open("r+b" if create else "rb") as file:
                head = file.read(16)
    except OSError as error:
        raise unreachable(uri, in_words(error)) from error
    if head and not head.startswith(b"SQLite format 3"):
        raise unreachable(uri, "the file is not an SQLite database")
    if not os.access(path.parent, os.W_OK):
        raise unreachable(uri, f"{path.parent} is not writable")


def _make(uri: str, path: Path) -> None:
    """An SQLite store that is whole or not there: MLflow makes its tables one by one, and refuses
    for ever a file in which a kill left some of them."""
    from mlflow import MlflowClient

    try:
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
            made, whole = Path(scratch) / "made.db", Path(scratch) / "whole.db"
            MlflowClient(tracking_uri=sqlite_uri(made)).search_experiments(max_results=1)
            with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(whole)) as copy:
                source.backup(copy)  # as MLflow keeps the first one open
            with suppress(FileExistsError):  # another process was faster
                os.link(whole, path)
    except Exception as error:  # whatever a driver raises, the user sees it
        raise unreachable(uri, in_words(error)) from error


def place_of(path: Path, experiment: str) -> Path:
    """Name where the artifacts of an experiment go, next to an SQLite store."""
    return path.resolve().parent / "artifacts" / re.sub(r"[^\w.-]+", "-", experiment)


def _follow(uri: str, path: Path) -> None:
    """Let a store that was moved or copied with its artifacts name these where they are now: MLflow
    keeps absolute addresses, and would read and write at the old place."""
    try:
        with closing(sqlite3.connect(path, timeout=LIMIT_S)) as store, store:
            if not _columns(store, "experiments"):  # MLflow makes its tables in an empty file
                return
            moved = dict[str, str]()
            for name, old in store.execute("SELECT name, artifact_location FROM experiments"):
                here = place_of(path, name)
                there = url2pathname(str(old or "").removeprefix("file://"))
                if here.as_uri() == old or not there.endswith(f"/artifacts/{here.name}"):
                    continue
                if here.is_dir() or not Path(there).parents[1].exists():
                    moved[old] = here.as_uri()
            for table, column in ADDRESSES if moved else ():
                for old, new in moved.items() if column in _columns(store, table) else ():
                    store.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                        (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
                    )
    except sqlite3.Error as error:
        raise unreachable(uri, in_words(error)) from error


def _columns(store: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in store.execute(f"PRAGMA table_info({table})")}


def _ping(uri: str, limit_s: float | None) -> None:
    """One small request without retries; in a thread where a driver might hang (limit_s)."""
    from mlflow import MlflowClient

    failures: list[Exception] = []

    def ask() -> None:
        try:
            MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        except Exception as error:  # whatever a driver raises, the user sees it
            failures.append(error)

    with _restored("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(PING_S)
        if limit_s is None:
            ask()
        else:
            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            thread.join(limit_s)
            if thread.is_alive():
                failures.append(TimeoutError(f"no answer within {limit_s:g} seconds"))
    if failures:
        raise unreachable(uri, in_words(failures[0])) from failures[0]


def unreachable(uri: str, why: str) -> PolicyError:
    """The error for a store that does not work; credentials are taken out of it."""
    reason = masked(why)[:200]
    return PolicyError(
        f"cannot use the MLflow tracking store {masked(uri)}: {reason}; start that server, or give "
        "another one with --tracking-uri or MLFLOW_TRACKING_URI"
    )


@contextmanager
def refusals(uri: str, what: str, then: str = "") -> Iterator[None]:
    """Say in a sentence what the store refuses within the block, by PolicyError.

    what: it did. then: what to do.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise PolicyError(
            f"the tracking store {masked(uri)} {what}: {in_words(error)}{then}"
        ) from error


def fetch(uri: str, folder: Path, tracking_uri: str | None) -> Path:
    """Download a policy's artifacts into the folder. Raises PolicyError where there are none."""
    with using(tracking_uri, create=False) as store:
        import mlflow

        try:
            return Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder)))
        except Exception as error:  # MLflow, the file system or an object store: one sentence
            raise PolicyError(
                f"cannot fetch {uri} from {masked(store)}: {in_words(error)}; check the name, or "
                "give the store with --tracking-uri"
            ) from error


@contextmanager
def own_run(client: MlflowClient, experiment_id: str, name: str) -> Iterator[Any]:
    """A new run, the active one while the context lasts. It lies below the caller's active run, or
    below the run that MLFLOW_RUN_ID names; what they hold stays as it is.

    Raises PolicyError for an MLFLOW_RUN_ID that this store does not have (`outer_run`).
    """
    import mlflow
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    active = mlflow.active_run()
    parent = outer_run(client) if active is None else None
    with _restored(OUTER):
        os.environ.pop(OUTER, None)  # MLflow would go on with that run, and forgets the name
        with mlflow.start_run(
            experiment_id=experiment_id, run_name=name, nested=True, parent_run_id=parent
        ) as begun:
            if active is not None and not _has(client, active.info.run_id):  # of another store
                client.delete_tag(begun.info.run_id, MLFLOW_PARENT_RUN_ID)
            yield begun


def outer_run(client: MlflowClient) -> str | None:
    """The run that MLFLOW_RUN_ID names, None where it is not set. Raises PolicyError where the
    store has no such run, or has deleted it."""
    from mlflow.exceptions import MlflowException

    named = os.environ.get(OUTER)
    if not named:
        return None
    try:
        if client.get_run(named).info.lifecycle_stage == "active":
            return named
        why = "was deleted"
    except MlflowException as error:
        why = f"is not in that store ({in_words(error)})"
    raise PolicyError(
        f"{OUTER} names the run {masked(named)!r}, which {why}; unset it, or give the store of "
        "that run with --tracking-uri"
    )


def _has(client: MlflowClient, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException:
        return False
    return True
