"""On Ray: collecting gives the same folder as in one process, whoever dies on the way; replicas
answer, and a dead one is replaced.

Ray and its workers start slowly, so one Ray does for all of this.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from collect_fakes import ARMS, FakeEngine, all_pairs, make_queries, pairs
from ray_workers import broken, loaded, slow_at, toy_application
from serve_toys import ASKED, CHAT, until

from collect.store.manifest import read_manifest
from collect.sweeps.batch import SweepOptions
from collect.sweeps.on_ray import OnRay
from collect.sweeps.progress import SweepProgress
from collect.sweeps.run import sweep
from decoders.common.errors import DraftpickError
from router.serve.server import bound

serve = pytest.importorskip("ray.serve", reason="there is no Ray for this Python")
from router.serve.on_ray import NAME, SIGNALS, Make, application, run, started  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # replicas that starve fall silent
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


# -- serving -------------------------------------------------------------------------------------

ALONE = {"model": "autoregressive", "max_tokens": 300}  # answers of three seconds at least


@contextmanager
def deployed(make: Make, replicas: int | None = None, ongoing: int = 40) -> Iterator[httpx.Client]:
    """A client of the application behind Serve's ingress, the only one on the cluster."""
    serve.shutdown()
    port = bound("127.0.0.1", 0).getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"port": port})
    try:
        started(application(make, replicas, ongoing, 20.0))
        key = {"Authorization": "Bearer secret"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=key, timeout=60) as http:
            yield http
    finally:
        serve.shutdown()


@pytest.fixture(scope="module")
def three(cluster: None) -> Iterator[httpx.Client]:
    """Behind one port three replicas, more than there are cores."""
    with deployed(toy_application, 3) as http:
        yield http


def kill_one() -> None:
    """The replica that began last, as those of an earlier test may not have ended yet."""
    import psutil

    names = "ray::ServeReplica"[:15]  # as Linux cuts it
    replicas = [each for each in psutil.process_iter() if each.name().startswith(names)]
    max(replicas, key=lambda each: each.create_time()).kill()


def running(http: httpx.Client) -> list[int]:
    """Answers that each replica writes."""
    return [each["requests_running"] for each in http.get("/stats").json().values()]


@contextmanager
def streaming(http: httpx.Client, count: int) -> Iterator[list[Future[str]]]:
    """Long answers that have begun, one of each replica at least."""

    def read() -> str:
        with http.stream("POST", CHAT, json=ASKED | ALONE | {"stream": True}) as answer:
            return "".join(answer.iter_text())

    with ThreadPoolExecutor(count) as pool:
        for _ in range(3):  # a router that chooses by chance may leave a replica out
            asked = [pool.submit(read) for _ in range(count)]
            if until(lambda: all(running(http)), 10):
                break
            wait(asked)
        else:
            raise AssertionError("some replica was never asked")
        yield asked


def test_answers_come_through_one_port_as_those_of_one_server(three: httpx.Client) -> None:
    told = [three.post(CHAT, json=ASKED) for _ in range(18)]
    assert {each.status_code for each in told} == {200}
    assert len({each.json()["choices"][0]["message"]["content"] for each in told}) == 1
    assert told[0].headers["x-draftpick-arm"] == "copy"

    assert until(lambda: len(three.get("/stats").json()) == 3, 30)  # one may be silent for a while
    stats = three.get("/stats").json().values()
    requests = [sum(arm["requests"] for arm in each["arms"].values()) for each in stats]
    assert len(requests) == 3 and sum(requests) == 18 and min(requests) > 0
    lines = three.get("/metrics").text.splitlines()
    written = [each for each in lines if each.startswith("vllm:generation_tokens_total{replica=")]
    assert sorted(float(each.split()[-1]) for each in written) == sorted(40.0 * n for n in requests)

    assert three.get("/").headers["content-type"].startswith("text/html")
    assert three.get("/v1/models").json()["data"][0]["id"] == "auto"
    assert three.head("/stats").status_code == three.get("/ready").status_code == 200
    for path in ("/stats", "/metrics", "/v1/models"):
        assert httpx.get(f"{three.base_url}{path}").status_code == 401
    wrong = three.post(CHAT, json={"messages": 1})
    assert wrong.status_code == 400 and "messages" in wrong.json()["error"]["message"]


def test_a_stream_comes_through_as_it_is_written(three: httpx.Client) -> None:
    times, lines = [], []
    with three.stream("POST", CHAT, json=ASKED | ALONE | {"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in filter(None, answer.iter_lines()):
            times.append(time.monotonic())
            lines.append(line)
    assert lines[-1] == "data: [DONE]" and len(lines) > 250
    assert np.diff(times).max() < 0.5 * (times[-1] - times[0])  # not all at the end


def test_an_answer_ends_when_its_client_leaves(three: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        three.post(CHAT, json=ASKED | ALONE, timeout=httpx.Timeout(5, read=0.5))
    assert until(lambda: sum(running(three)) == 0, 6)
    with three.stream("POST", CHAT, json=ASKED | ALONE | {"stream": True}) as answer:
        lines = answer.iter_lines()  # whose end would close the response
        assert next(lines) and sum(running(three)) == 1
    assert until(lambda: sum(running(three)) == 0, 6)


def test_more_than_all_queues_hold_are_refused(three: httpx.Client) -> None:
    with ThreadPoolExecutor(60) as pool:
        told = list(pool.map(lambda _: three.post(CHAT, json=ASKED), range(60)))
    assert {each.status_code for each in told} == {200, 429}
    refused = next(each for each in told if each.status_code == 429)
    assert refused.headers["retry-after"] and refused.json()["error"]["code"] == "queue_full"


def test_a_killed_replica_loses_what_it_held_alone_and_is_replaced(three: httpx.Client) -> None:
    before = set(three.get("/stats").json())
    with streaming(three, 6) as asked:
        kill_one()
        told = [each.exception() or each.result() for each in asked]
    ended = [each for each in told if isinstance(each, str) and each.endswith("data: [DONE]\n\n")]
    assert 0 < len(ended) < 6
    assert three.post(CHAT, json=ASKED).status_code == 200  # by the other one
    assert until(lambda: len(three.get("/stats").json()) == 3, 90)
    assert len(three.get("/stats").json().keys() - before) == 1


def test_at_the_end_nothing_new_is_taken_and_what_began_ends(three: httpx.Client) -> None:
    """Last of those with these replicas, as they take nothing from here on."""
    everyone = serve.get_app_handle(NAME)
    with streaming(three, 6) as asked, ThreadPoolExecutor(1) as pool:
        drained = pool.submit(everyone.broadcast("drain", 60.0).results)
        assert until(lambda: three.get("/ready").status_code == 503)
        assert three.post(CHAT, json=ASKED).json()["error"]["code"] == "shutting_down"
        assert drained.result() == [True] * 3
    assert all(each.result().endswith("data: [DONE]\n\n") for each in asked)


def test_a_killed_replica_loses_what_it_wrote_alone_where_others_wait_at_the_ingress(
    cluster: None,
) -> None:
    with deployed(toy_application, 2, ongoing=1) as http, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(http.post, CHAT, json=ASKED | ALONE) for _ in range(8)]
        time.sleep(1)
        kill_one()
        assert sorted(each.result().status_code for each in asked) == [200] * 7 + [500]


def test_a_signal_ends_the_command_after_the_running_answers(
    cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.shutdown()
    port = bound("127.0.0.1", 0).getsockname()[1]
    again = pytest.raises(DraftpickError, match="Ray Serve runs on this cluster already")

    def use() -> str:
        key = {"Authorization": "Bearer secret"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=key, timeout=60) as http:
            while "serving on" not in capsys.readouterr().err:
                time.sleep(0.1)
            with again:
                run(lambda: None, None, "127.0.0.1", port, 60.0)
            with streaming(http, 1) as asked:
                os.kill(os.getpid(), signal.SIGTERM)
                assert until(lambda: http.get("/ready").status_code == 503)
            return asked[0].result()

    handlers = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        with ThreadPoolExecutor(1) as pool:
            used = pool.submit(use)
            run(lambda: application(toy_application, 1, 40, 60.0), None, "127.0.0.1", port, 60.0)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert used.result().endswith("data: [DONE]\n\n")
    assert "shutting down after the running answers" in capsys.readouterr().err


def test_what_a_replica_raises_is_told_in_its_own_words(cluster: None) -> None:
    told = pytest.raises(DraftpickError, match=r"^this engine cannot be loaded here$")
    with told, deployed(broken):  # one a machine
        pass
