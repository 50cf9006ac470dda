"""On Ray: collecting gives the same folder as in one process, whoever dies on the way; replicas
answer, and a dead one is replaced.

Ray and its workers start slowly, so one Ray does for all of this.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from collect_fakes import ARMS, FakeEngine, all_pairs, make_queries, pairs
from ray_workers import broken, loaded, plain_application, slow_at, toy_application
from serve_toys import asking, in_front, until

from collect.store.manifest import read_manifest
from collect.sweeps.batch import SweepOptions
from collect.sweeps.on_ray import OnRay
from collect.sweeps.progress import SweepProgress
from collect.sweeps.ray_cluster import cores_each
from collect.sweeps.run import sweep
from decoders.common.errors import DraftpickError
from router.serve.app import Settings
from router.serve.replicas import proxy
from router.serve.replicas import replicas as all_replicas
from router.serve.replicas.on_ray import OnRay as ReplicasOnRay
from router.serve.replicas.replicas import Replicas

ON_ONE = pytest.mark.xdist_group("ray")  # process, or each would start Ray
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


def test_cores_are_shared_evenly() -> None:
    assert cores_each([{"CPU": 16, "GPU": 4}, {"CPU": 8, "GPU": 1}], 5, 5) == 4
    assert cores_each([{"CPU": 16}, {"CPU": 8}], 2, 0) == 8
    assert cores_each([{"CPU": 2}], 4, 0) == 1
    assert cores_each([{"CPU": 64}, {"CPU": 8, "GPU": 2}], 2, 2) == 4


@pytest.mark.slow
@ON_ONE
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
@ON_ONE
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
@ON_ONE
def test_queries_that_kill_every_worker_end_the_sweep(cluster: None, tmp_path: Path) -> None:
    queries = make_queries(3)
    make = partial(loaded, "math", tmp_path / "died", every_time=True)
    told = pytest.raises(DraftpickError, match="3 workers died over the same 3 queries")
    with told, OnRay(make, workers=2) as two:
        sweep(FakeEngine(), two, queries, tmp_path / "ray", OPTIONS)
    done = {query for query, _ in pairs(tmp_path / "ray")}
    assert len(pairs(tmp_path / "ray")) == len(done) * len(ARMS)  # whole queries


@pytest.mark.slow
@ON_ONE
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
    assert len(two._idle) < len(two._started)
    assert until(lambda: all(map(is_dead, two._started)), 30)


@pytest.mark.slow
@ON_ONE
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
@ON_ONE
def test_what_a_worker_raises_is_told_in_its_words(cluster: None, tmp_path: Path) -> None:
    told = pytest.raises(DraftpickError, match=r"^this engine cannot be loaded here$")
    with told, OnRay(broken, workers=1) as one:
        sweep(FakeEngine(), one, make_queries(1), tmp_path / "ray", OPTIONS)


# -- serving -------------------------------------------------------------------------------------


@pytest.mark.slow
@ON_ONE
def test_both_answer_and_a_killed_process_is_replaced(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    monkeypatch.setattr(proxy, "HEALTH_S", 0.2)
    monkeypatch.setattr(all_replicas, "AGAIN_S", 0.2)
    assert ReplicasOnRay(toy_application).n == 1  # one a machine
    starter = ReplicasOnRay(toy_application, replicas=2)
    replicas = Replicas(starter, starter.n)
    with in_front(replicas, Settings()) as url:
        before = {each.url for each in replicas.live}
        assert len(before) == 2
        with asking(url, 6) as asked:
            assert until(lambda: min(each.under_way for each in replicas.live) > 0)
            port = int(replicas.live[0].url.rpartition(":")[2])
            (pid,) = {
                each.pid
                for each in psutil.net_connections("tcp")
                if each.laddr.port == port and each.status == "LISTEN"
            }
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        assert [each.result().status_code for each in asked] == [200] * 6
        assert until(lambda: len(replicas.live) == 2, 180)
        assert len({each.url for each in replicas.live} - before) == 1
        stats = httpx.get(f"{url}/stats", timeout=20).json()
        assert stats["lost"] == 1 and len(stats["replicas"]) == 2


@pytest.mark.slow
@ON_ONE
def test_what_a_replica_raises_is_told_in_its_own_words(cluster: None) -> None:
    starter = ReplicasOnRay(broken, replicas=1)
    with pytest.raises(DraftpickError, match=r"^this engine cannot be loaded here$"):
        Replicas(starter, starter.n)


@pytest.mark.slow
@ON_ONE
def test_more_replicas_than_cores_begin(cluster: None) -> None:
    starter = ReplicasOnRay(plain_application, replicas=3)
    replicas = Replicas(starter, starter.n)
    try:
        urls = {each.url for each in replicas.live}
        assert len(urls) == 3
        assert {httpx.get(url).text for url in urls} == {"here"}
    finally:
        replicas.close()
