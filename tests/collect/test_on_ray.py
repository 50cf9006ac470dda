"""Collecting on Ray: the same folder as in one process, whoever dies on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from collect_fakes import ARMS, FakeEngine, all_pairs, make_queries, pairs

from collect.store.manifest import read_manifest
from collect.sweeps.batch import SweepOptions
from collect.sweeps.on_ray import OnRay
from collect.sweeps.progress import SweepProgress
from collect.sweeps.ray_cluster import cores_each
from collect.sweeps.run import sweep
from decoders.common.errors import DraftpickError

OPTIONS = SweepOptions(max_new_tokens=8, batch_size=3)


def loaded(deadly: str = "", mark: Path | None = None, every_time: bool = False) -> Any:
    """What a worker loads: the fake engine, whose process ends at a prompt that holds the word,
    the first time or every time."""
    engine = FakeEngine()
    word = sum(map(ord, deadly))

    def hook(name: str, prompts: list[list[int]]) -> None:
        if deadly and any(word in prompt for prompt in prompts):
            assert mark is not None
            if every_time or not mark.exists():
                mark.touch()
                os._exit(1)

    engine.batch.hook = hook
    return engine, engine.batch


def slow_at(word: str) -> Any:
    """What a worker loads: the fake engine, which takes a minute over a prompt with the word."""
    engine = FakeEngine()

    def hook(name: str, prompts: list[list[int]]) -> None:
        if any(sum(map(ord, word)) in prompt for prompt in prompts):
            time.sleep(60)

    engine.batch.hook = hook
    return engine, engine.batch


def broken() -> Any:
    raise DraftpickError("this engine cannot be loaded here")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all tests; what finds Ray running leaves it running."""
    import ray

    here = Path(__file__).parent  # workers import this file and the fakes
    path = os.pathsep.join(map(str, (here.parents[1], here)))
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


def test_cores_are_shared_evenly() -> None:
    assert cores_each([{"CPU": 16, "GPU": 4}, {"CPU": 8, "GPU": 1}], 5, 5) == 4
    assert cores_each([{"CPU": 16}, {"CPU": 8}], 2, 0) == 8
    assert cores_each([{"CPU": 2}], 4, 0) == 1
    assert cores_each([{"CPU": 64}, {"CPU": 8, "GPU": 2}], 2, 2) == 4


@pytest.mark.slow
def test_rows_and_shards_are_those_of_one_process(cluster: None, tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries(3)
    with OnRay(loaded, workers=2) as two:
        report = sweep(engine, two, queries, tmp_path / "ray", OPTIONS)
    assert (report.collected, report.errors) == (len(queries), 0)
    assert not engine.batch.calls  # nothing was decoded here
    sweep(FakeEngine(), FakeEngine().batch, queries, tmp_path / "here", OPTIONS)
    assert files(tmp_path / "ray") == files(tmp_path / "here")
    there, here = read_manifest(tmp_path / "ray"), read_manifest(tmp_path / "here")
    same = ("identity", "arms", "costs", "embedder")
    assert [asdict(there)[name] for name in same] == [asdict(here)[name] for name in same]


@pytest.mark.slow
def test_what_a_dead_worker_held_is_done_by_another(cluster: None, tmp_path: Path) -> None:
    queries = make_queries(3)
    make = partial(loaded, "math", tmp_path / "died")
    with OnRay(make, workers=2) as two:
        report = sweep(FakeEngine(), two, queries, tmp_path / "ray", OPTIONS)
    assert (tmp_path / "died").exists()
    assert (report.collected, report.errors) == (len(queries), 0)
    sweep(FakeEngine(), FakeEngine().batch, queries, tmp_path / "here", OPTIONS)
    assert files(tmp_path / "ray") == files(tmp_path / "here")


@pytest.mark.slow
def test_queries_that_kill_every_worker_end_the_sweep(cluster: None, tmp_path: Path) -> None:
    queries = make_queries(3)
    make = partial(loaded, "math", tmp_path / "died", every_time=True)
    told = pytest.raises(DraftpickError, match="3 workers died over the same 3 queries")
    with told, OnRay(make, workers=2) as two:
        sweep(FakeEngine(), two, queries, tmp_path / "ray", OPTIONS)
    done = {query for query, _ in pairs(tmp_path / "ray")}
    assert len(pairs(tmp_path / "ray")) == len(done) * len(ARMS)  # whole queries


@pytest.mark.slow
def test_who_is_at_work_when_a_sweep_ends_early_is_stopped(cluster: None, tmp_path: Path) -> None:
    """Or its core is taken on a cluster that stays, for as long as a traceback holds the worker."""
    import ray

    def stop(progress: SweepProgress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    make = partial(slow_at, "math")
    with pytest.raises(KeyboardInterrupt), OnRay(make, workers=2) as two:
        sweep(FakeEngine(), two, make_queries(3), tmp_path / "ray", OPTIONS, stop)
    assert len(two._idle) < len(two._started)
    for worker in two._started:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(worker.costs.remote(), timeout=30)


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_here_or_there(cluster: None, tmp_path: Path) -> None:
    queries, out = make_queries(4), tmp_path / "out"

    def stop(progress: SweepProgress) -> None:
        if progress.done >= 6 * len(ARMS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), OnRay(loaded, workers=2) as two:
        sweep(FakeEngine(), two, queries, out, OPTIONS, stop)
    assert len(pairs(out)) == 6 * len(ARMS)
    engine = FakeEngine()
    sweep(engine, engine.batch, queries[:12], out, OPTIONS)
    with OnRay(loaded, workers=2) as two:
        report = sweep(FakeEngine(), two, queries, out, OPTIONS)
    assert report.already + report.collected == len(queries) and report.collected > 0
    assert pairs(out) == all_pairs(queries)


@pytest.mark.slow
def test_what_a_worker_raises_is_told_in_its_words(cluster: None, tmp_path: Path) -> None:
    told = pytest.raises(DraftpickError, match=r"^this engine cannot be loaded here$")
    with told, OnRay(broken, workers=1) as one:
        sweep(FakeEngine(), one, make_queries(1), tmp_path / "ray", OPTIONS)
