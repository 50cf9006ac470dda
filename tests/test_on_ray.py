"""Collecting on Ray gives the same folder as in one process, whoever dies on the way.

Ray and its workers start slowly, so one Ray does for all of this.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from collect_fakes import ARMS, FakeEngine, all_pairs, make_queries, pairs
from ray_workers import broken, loaded, slow_at
from serve_toys import until

from collect.store.manifest import read_manifest
from collect.sweeps.batch import SweepOptions
from collect.sweeps.on_ray import OnRay
from collect.sweeps.progress import SweepProgress
from collect.sweeps.run import sweep
from decoders.common.errors import DraftpickError

pytest.importorskip("ray", reason="there is no Ray for this Python")
pytestmark = [pytest.mark.slow, pytest.mark.alone]  # workers take both cores
OPTIONS = SweepOptions(max_new_tokens=8, batch_size=3)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.parquet"))
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all tests; what finds Ray running leaves it running."""
    import ray

    here = Path(__file__).parent  # workers import what lies there, those too that are at hand early
    folders = (here.parent, here, here / "collect", here / "router" / "serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


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


def test_what_a_dead_worker_held_is_done_by_another(cluster: None, tmp_path: Path) -> None:
    queries = make_queries(3)
    make = partial(loaded, "math", tmp_path / "died")
    with OnRay(make, workers=2) as two:
        report = sweep(FakeEngine(), two, queries, tmp_path / "ray", OPTIONS)
    assert (tmp_path / "died").exists()
    assert (report.collected, report.errors) == (len(queries), 0)
    sweep(FakeEngine(), FakeEngine().batch, queries, tmp_path / "here", OPTIONS)
    assert files(tmp_path / "ray") == files(tmp_path / "here")


def test_queries_that_kill_every_worker_end_the_sweep(cluster: None, tmp_path: Path) -> None:
    queries = make_queries(3)
    make = partial(loaded, "math", tmp_path / "died", every_time=True)
    told = pytest.raises(DraftpickError, match="3 workers died over the same 3 queries")
    with told, OnRay(make, workers=2) as two:
        sweep(FakeEngine(), two, queries, tmp_path / "ray", OPTIONS)
    done = {query for query, _ in pairs(tmp_path / "ray")}
    assert len(pairs(tmp_path / "ray")) == len(done) * len(ARMS)  # whole queries


def test_who_is_at_work_when_a_sweep_ends_early_is_stopped(cluster: None, tmp_path: Path) -> None:
    """Or its core is taken on a cluster that stays, for as long as a traceback holds the worker."""
    import ray

    def stop(progress: SweepProgress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    def is_dead(worker: Any) -> bool:  # one that is being stopped may answer once more
        try:
            ray.get(worker.costs.remote(), timeout=30)
        except ray.exceptions.RayActorError:
            return True
        return False

    make = partial(slow_at, "math")
    with pytest.raises(KeyboardInterrupt), OnRay(make, workers=2) as two:
        sweep(FakeEngine(), two, make_queries(3), tmp_path / "ray", OPTIONS, stop)
    assert until(lambda: all(map(is_dead, two._workers)), 30)


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


def test_what_a_worker_raises_is_told_in_its_words(cluster: None, tmp_path: Path) -> None:
    told = pytest.raises(DraftpickError, match=r"^this engine cannot be loaded here$")
    with told, OnRay(broken, workers=1) as one:
        sweep(FakeEngine(), one, make_queries(1), tmp_path / "ray", OPTIONS)
