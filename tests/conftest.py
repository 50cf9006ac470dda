"""Shared by all tests: property tests' profiles, one MLflow store, a place for others' packages."""

import gc
import os
import shutil
import sqlite3.dbapi2
import tomllib
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import effort  # noqa: F401  # before any test's settings
import pytest
from commands import Draftpick, Said
from filelock import FileLock
from httpx._transports import default as _default

from decoders.common import plugins
from decoders.costs import passes
from decoders.testing.fake_server import FakeEndpoint, listening
from policies import mlflow_store
from router import mlflow_model
from router.specbench import bench

SLOW = ("slow", "property")  # marks of what `make slow` runs
plugins.load("policies")  # what a stale installation does not name follows
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
for entries in tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"].values():
    plugins.load_named(entries.values(), PYPROJECT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks property tests, which `make slow` runs with every example, and as slow all cases but
    every nth of a test that is marked so. What is slow by itself comes first, so that no worker
    ends with a long test.

    Of a product of parameters the nth are the cases whose places along each of them add up to a
    multiple of n, so that every value occurs in one. PART=2/5 leaves every fifth of what is slow,
    from the third on.
    """
    seen: dict[tuple[str, ...], dict[tuple[int, ...], int]] = {}
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
        every = item.get_closest_marker("every")
        if every is None:
            continue
        values, place = item.callspec.params, 0  # type: ignore[attr-defined]
        groups = parametrised_together(item)
        for names in groups:
            known = seen.setdefault((item.nodeid.partition("[")[0], *names), {})
            # a product repeats its values, which need not be hashable, and does not copy them
            place += known.setdefault(tuple(id(values[name]) for name in names), len(known))
        if place % every.args[0]:
            item.add_marker(pytest.mark.slow)
    if part := os.environ.get("PART"):
        which, of = map(int, part.split("/"))
        slow = [item for item in items if {*SLOW} & {mark.name for mark in item.iter_markers()}]
        left_out = {item for i, item in enumerate(slow) if i % of != which % of}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_xdist_auto_num_workers() -> int:
    """More than there are processors, as some tests wait; not more than eight, for their memory."""
    return min(8, (os.cpu_count() or 1) * 3 // 2)


def pytest_collection_finish() -> None:
    """What every test needs is no garbage: looking through it takes a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def parametrised_together(item: Any) -> list[tuple[str, ...]]:
    """The names of a test's parameters, and of its fixtures', that have their values together."""
    groups = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        groups.append(tuple(names.replace(" ", "").split(",") if isinstance(names, str) else names))
    alone = item.callspec.params.keys() - {name for names in groups for name in names}
    return [*groups, *((name,) for name in sorted(alone))]


@pytest.fixture(scope="session", autouse=True)
def one_mlflow_store(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, Path], None]]:
    """Tests of this process copy one new SQLite store; MLflow takes most of a second to make one.

    Nor does it try every logged policy on its example, which loads the target's model:
    tests/test_served_policies.py serves them. Processes that tests start do as users' do.
    """
    own = tmp_path_factory.getbasetemp()
    kept = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "new-mlflow.db"
    make = mlflow_store._make

    def copy(uri: str, path: Path) -> None:
        patch.setattr("mlflow.models.utils._validate_serving_input", lambda *_, **__: None)
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                make(f"{mlflow_store.SQLITE}{kept}", kept)
        shutil.copy(kept, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_store, "_make", copy)
        yield make


@pytest.fixture(scope="session", autouse=True)
def tracked_runs_hold_little() -> Iterator[None]:
    """The versions of packages are not read from disk for every run, nor is the code copied with
    every logged model: tests/test_served_policies.py has it travel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_model, "copies_of_code", lambda *_: [])
        patch.setattr(metadata, "version", cache(metadata.version))
        yield


@pytest.fixture(scope="session", autouse=True)
def pictures_are_drawn_once() -> Iterator[None]:
    """Of runs: the later ones are the first, as drawing takes long."""
    drawn, speedups = list[bytes](), bench.speedups

    def once(summary: Any) -> bytes:
        drawn[:] = drawn or [speedups(summary)]
        return drawn[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "speedups", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Not for every connection, as long as the environment names the same ones; nor are the
    attributes of a protocol listed whenever an object is held to it, as up to Python 3.11."""

    def context(**given: Any) -> Any:
        named = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return made(tuple(given.items()), named)

    with pytest.MonkeyPatch.context() as patch:
        made = cache(lambda given, _, create=_default.create_ssl_context: create(**dict(given)))
        patch.setattr(_default, "create_ssl_context", context)
        listed = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]
        patch.setattr(typing, "_get_protocol_attrs", listed)
        yield


@pytest.fixture(scope="session", autouse=True)
def databases_are_not_synced() -> Iterator[None]:
    """No test pulls the plug, but those of benchmarks/survive, in processes of their own."""
    connect = sqlite3.dbapi2.connect

    def loose(*given: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*given, **options)
        with suppress(sqlite3.DatabaseError):  # it is none
            made.execute("PRAGMA synchronous=OFF")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3.dbapi2, "connect", loose)
        yield


@pytest.fixture(scope="session", autouse=True)
def costs_are_measured_twice() -> Iterator[None]:
    """Not five times, nor passes nine times, which takes longer. Processes that tests start do as
    users' do."""
    measure = passes.measure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoders.costs.measured.MEASUREMENTS", 2)
        patch.setattr(passes, "measure", lambda target, repeats=2: measure(target, 2))
        yield


@pytest.fixture
def stores_are_made(
    one_mlflow_store: Callable[[str, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For tests of how a store is made: MLflow makes each."""
    monkeypatch.setattr(mlflow_store, "_make", one_mlflow_store)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; what is registered from it is forgotten afterwards."""
    from strangers import forgotten

    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    with forgotten(folder):
        yield folder


@pytest.fixture
def draftpick(capsys: pytest.CaptureFixture[str]) -> Draftpick:
    """draftpick(words...): what the command says; what was said before is forgotten."""
    from router.cli import main

    def run(*words: object, code: int = 0) -> Said:
        capsys.readouterr()
        ended = main([str(word) for word in words])
        said = Said(*capsys.readouterr())
        assert ended == code, said
        return said

    return run


@pytest.fixture(scope="session")
def script() -> Callable[..., None]:
    """script(name, options...): the main of a file in benchmarks/."""

    def run(name: str, *options: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [f"{name}.py", *map(str, options)])
            import_module(name).main()

    return run


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    fake = FakeEndpoint()
    with listening(fake):
        yield fake
