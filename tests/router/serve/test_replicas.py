"""Several servers behind one address: each answers, a dead one is replaced, and no answer that had
not begun is lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from serve_toys import ASKED, CHAT, Served, asking, in_front, served, toy_engine, until
from typer.testing import CliRunner

from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions
from router.cli import app, main
from router.commands.router_options import LogOptions
from router.commands.serve import served as command
from router.serve.app import Settings
from router.serve.replicas import proxy
from router.serve.replicas import replicas as all_replicas
from router.serve.replicas.aggregate import aggregate
from router.serve.replicas.replicas import Replicas


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEALTH_S", 0.2)
    monkeypatch.setattr(all_replicas, "AGAIN_S", 0.2)


class Threads:
    """A Starter of toy servers in this process; `stop` cuts off what they are writing."""

    def __init__(
        self, pause_s: float = 0.0, settings: Settings | None = None, places: int = 8
    ) -> None:
        self.pause_s, self.settings, self.places = pause_s, settings, places
        self.started: list[Served] = []
        self.fails = 0
        self._all = ExitStack()

    def start(self) -> tuple[str, Served]:
        if self.fails:
            self.fails -= 1
            raise DraftpickError("there is no room for another one")
        engine = toy_engine(self.pause_s)
        made = self._all.enter_context(served(self.settings, self.places, engine=engine))
        self.started.append(made)
        return made.url, made

    def stop(self, handle: Served) -> None:
        cut(handle)

    def close(self) -> None:
        self._all.close()


def cut(server: Served) -> None:
    """As if its process were killed: nobody listens, and every connection is reset."""
    server.server.should_exit = True
    for one in server.server.servers:
        one.get_loop().call_soon_threadsafe(one.close)
    for connection in list(server.server.server_state.connections):
        transport = connection.transport
        one.get_loop().call_soon_threadsafe(transport.abort)


@contextmanager
def proxied(
    n: int = 2,
    pause_s: float = 0.0,
    settings: Settings = Settings(max_body=2**20, timeout_s=20.0),
    places: int = 8,
) -> Iterator[tuple[str, Replicas, Threads]]:
    starter = Threads(pause_s, settings, places)
    replicas = Replicas(starter, n, random.Random(1))
    try:
        with in_front(replicas, settings) as url:
            yield url, replicas, starter
    finally:
        starter.close()


def requests_of(server: Served) -> int:
    found: dict[str, Any] = httpx.get(f"{server.url}/stats").json()
    return sum(arm["requests"] for arm in found["arms"].values())


def test_answers_are_those_of_one_server_and_all_replicas_write_them(toy: Served) -> None:
    alone = httpx.post(toy.url + CHAT, json=ASKED).json()
    with proxied() as (url, replicas, starter), httpx.Client(timeout=20) as http:
        for _ in range(12):
            answer = http.post(url + CHAT, json=ASKED)
            assert answer.status_code == 200 and answer.headers["x-draftpick-arm"]
            assert answer.json()["choices"] == alone["choices"]
        counts = [requests_of(each) for each in starter.started]
        assert sum(counts) == 12 and min(counts) > 0
        stats = http.get(f"{url}/stats").json()
        assert len(stats["replicas"]) == 2 and stats["lost"] == 0
        written = [
            line for line in http.get(f"{url}/metrics").text.splitlines()
            if line.startswith("vllm:generation_tokens_total ")
        ]  # fmt: skip
        tokens = alone["usage"]["completion_tokens"]
        assert float(written[0].split()[-1]) == 12 * tokens
        assert http.get(f"{url}/v1/models").json()["data"][0]["id"] == "auto"
        assert http.get(f"{url}/").headers["content-type"].startswith("text/html")
        assert http.post(url + CHAT, json={"messages": 1}).status_code == 400
        assert http.get(f"{url}/v1/models/none").status_code == 404
        assert replicas.under_way == 0


def test_a_stream_comes_through_as_it_is_written() -> None:
    with proxied(pause_s=0.05) as (url, replicas, _):
        times, lines = [], []
        with httpx.stream("POST", url + CHAT, json=ASKED | {"stream": True}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-draftpick-arm"]
            for line in answer.iter_lines():
                times.append(time.monotonic())
                lines += [line] if line else []
            assert replicas.under_way <= 1
        assert lines[-1] == "data: [DONE]"
        assert times[-1] - times[0] > 0.2  # not all at the end
        assert until(lambda: replicas.under_way == 0)


def test_the_less_busy_of_two_is_taken() -> None:
    with proxied(3) as (_, replicas, _):
        first = replicas.live[0]
        first.under_way += 100
        for _ in range(30):
            taken = replicas.take()
            assert taken is not None and taken is not first
        assert max(each.under_way for each in replicas.live[1:]) < 30
        first.under_way -= 100
        assert replicas.take(but=replicas.live) is None


def test_a_dead_one_is_replaced_and_waiting_answers_are_written_elsewhere() -> None:
    with proxied(pause_s=0.02) as (url, replicas, starter):
        with asking(url, 8) as asked:
            assert until(lambda: all(each.scheduler.running for each in starter.started))
            cut(starter.started[0])
        told = [each.result() for each in asked]
        assert [answer.status_code for answer in told] == [200] * 8
        assert len({answer.json()["choices"][0]["message"]["content"] for answer in told}) == 1
        assert until(lambda: len(replicas.live) == 2 and len(starter.started) == 3)
        assert replicas.lost_count == 1
        assert starter.started[0].url not in [each.url for each in replicas.live]


def test_a_stream_whose_writer_dies_says_so() -> None:
    with proxied(pause_s=0.05) as (url, replicas, starter):
        lines = []
        asked = ASKED | {"stream": True, "max_tokens": 200}
        with httpx.stream("POST", url + CHAT, json=asked, timeout=20) as answer:
            for line in answer.iter_lines():
                lines += [line] if line else []
                if line and len(lines) == 4:
                    (busy,) = [each for each in starter.started if each.scheduler.running]
                    cut(busy)
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "died"
        assert "data: [DONE]" not in lines
        assert until(lambda: len(replicas.live) == 2)
        assert replicas.under_way == 0


def test_one_that_dies_idle_is_noticed_and_one_that_cannot_start_is_tried_again() -> None:
    with proxied() as (url, replicas, starter):
        assert httpx.get(f"{url}/ready").status_code == 200  # from now on they are watched
        starter.fails = 1
        cut(starter.started[1])
        assert until(lambda: replicas.lost_count == 1, 10)
        assert until(lambda: len(replicas.live) == 2, 10)
        assert starter.fails == 0


def test_who_leaves_ends_the_answer() -> None:
    with proxied(pause_s=0.05) as (url, replicas, starter):
        asked = ASKED | {"max_tokens": 400, "model": "autoregressive"}  # of 20 s at least

        def ended() -> bool:
            return until(lambda: not any(each.scheduler.running for each in starter.started), 3)

        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + CHAT, json=asked, timeout=httpx.Timeout(5, read=0.4))
        assert ended() and until(lambda: replicas.under_way == 0)
        with httpx.stream("POST", url + CHAT, json=asked | {"stream": True}) as answer:
            lines = answer.iter_lines()  # whose end would close the response
            assert next(lines) and answer.status_code == 200
            assert replicas.under_way == 1
        assert ended() and until(lambda: replicas.under_way == 0)


def test_keys_are_asked_for() -> None:
    with proxied(settings=Settings(api_key=SecretStr("secret"))) as (url, _, _):
        assert httpx.get(f"{url}/health").status_code == 200
        for path in ("/metrics", "/stats", "/v1/models"):
            assert httpx.get(url + path).status_code == 401
            own = {"Authorization": "Bearer secret"}
            assert httpx.get(url + path, headers=own).status_code == 200


def test_what_a_lost_one_counted_stays_and_a_page_can_be_drawn(toy: Served) -> None:
    with proxied() as (url, replicas, starter), httpx.Client(timeout=20) as http:
        for _ in range(4):
            http.post(url + CHAT, json=ASKED)
        before, counted = http.get(f"{url}/stats").json(), counters(http, url)
        assert set(httpx.get(f"{toy.url}/stats").json()) < set(before)  # what the page reads
        assert sum(arm["requests"] for arm in before["arms"].values()) == 4
        assert counted["draftpick_requests_total"] == 4
        cut(starter.started[0])
        assert until(lambda: replicas.lost_count == 1 and len(replicas.live) == 2, 10)
        after = http.get(f"{url}/stats").json()
        assert after["arms"] == before["arms"] and after["lost"] == 1
        assert after["target"] == "toy" and after["uptime_s"] > before["uptime_s"]
        assert counters(http, url) == counted
        http.post(url + CHAT, json=ASKED)
        assert counters(http, url)["draftpick_requests_total"] == 5


def test_one_that_hangs_keeps_nobody_from_the_others_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "TELL_S", 0.6)
    with proxied(3) as (url, _, starter), httpx.Client(timeout=20) as http:
        for _ in range(4):
            http.post(url + CHAT, json=ASKED)
        counted = counters(http, url)
        for hung in starter.started[:2]:
            (listening,) = hung.server.servers
            listening.get_loop().call_soon_threadsafe(time.sleep, 3)
        began = time.monotonic()
        assert counters(http, url) == counted
        stats = http.get(f"{url}/stats").json()
        assert time.monotonic() - began < 2  # neither asks in turn, nor waits for the end
        assert sorted(each["answers"] for each in stats["replicas"]) == [False, False, True]
        assert sum(arm["requests"] for arm in stats["arms"].values()) == 4


def counters(http: httpx.Client, url: str) -> dict[str, float]:
    """By name, over all labels."""
    sums: dict[str, float] = {}
    for line in http.get(f"{url}/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if not line.startswith("#") and not name.startswith("vllm:num_requests"):
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def test_headers_of_any_bytes_are_handed_on() -> None:
    with proxied(settings=Settings(api_key=SecretStr("geheim-ß"))) as (url, _, _):
        right = {"Authorization": "Bearer geheim-ß".encode()}
        for path in ("/metrics", "/stats", "/v1/models"):
            assert httpx.get(url + path, headers=right).status_code == 200


def test_where_one_queue_is_full_another_replica_is_asked() -> None:
    with proxied(pause_s=0.03, places=2) as (url, replicas, _):
        replicas.live[0].under_way -= 50  # the less busy one, whatever it is given

        def ask(count: int) -> list[int]:
            with asking(url, count) as asked:
                return sorted(each.result().status_code for each in asked)

        # One replica has room for two that wait and the one that it answers.
        assert ask(4) == [200] * 4
        assert ask(12)[-1] == 429  # six at most


def test_at_the_end_nothing_new_is_taken_and_what_began_ends() -> None:
    with proxied(pause_s=0.03) as (url, replicas, _):
        with asking(url, 1) as asked, ThreadPoolExecutor(1) as pool:
            assert until(lambda: replicas.under_way == 1)
            drained = pool.submit(replicas.drain, 20)
            assert until(lambda: httpx.get(f"{url}/ready").status_code == 503)
            assert httpx.post(url + CHAT, json=ASKED).json()["error"]["code"] == "shutting_down"
        assert drained.result() and asked[0].result().status_code == 200


def test_those_that_cannot_start_at_first_are_told() -> None:
    starter = Threads()
    starter.fails = 1
    with pytest.raises(DraftpickError, match="no room for another"):
        Replicas(starter, 2)
    assert until(lambda: starter.started[0].server.should_exit)
    starter.close()


def test_metrics_add_up() -> None:
    one = (
        "# HELP a_total Of arms.\n# TYPE a_total counter\n"
        'a_total{arm="x"} 2.0\na_total{arm="y"} 1.0\na_created{arm="x"} 9.0\n'
        "# HELP h Seconds.\n# TYPE h histogram\n"
        'h_bucket{le="1.0"} 1.0\nh_bucket{le="+Inf"} 2.0\nh_count 2.0\nh_sum 5.5\n'
    )
    other = '# HELP a_total Of arms.\n# TYPE a_total counter\na_total{arm="x"} 5.0\n'
    content, kind = aggregate([one, other])
    lines = content.decode().splitlines()
    assert 'a_total{arm="x"} 7.0' in lines and 'a_total{arm="y"} 1.0' in lines
    assert 'h_bucket{le="+Inf"} 2.0' in lines and "h_sum 5.5" in lines
    assert not any("created" in line for line in lines) and kind.startswith("text/plain")


# -- the command ----------------------------------------------------------------------------------


def test_options_of_the_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_routers", None)
    for words, told in (
        (["--engine", "rays"], "unknown engine 'rays'; known: local, ray"),
        (["--replicas", "2"], "add --engine ray"),
        (["--ray-address", "auto"], "add --engine ray"),
    ):
        assert main(["serve", *words]) == 2
        assert told in capsys.readouterr().err
    assert "--replicas" in CliRunner().invoke(app, ["serve", "--help"]).output


def test_paths_hold_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "arms.yaml", "template"):
        Path(name).touch()
    options = EngineOptions(target="known-name", arms="arms.yaml", chat_template="template")
    log = LogOptions(Path("log"))
    named = {"default": "mine", "other": "models:/a@b"}
    placed = command.Served(options, named, None, log, Settings(), 1, False, 1, True).placed()
    assert placed.options.target == "known-name"
    assert placed.options.arms == tmp_path / "arms.yaml"
    assert placed.options.chat_template == str(tmp_path / "template")
    assert placed.named == {"default": str(tmp_path / "mine"), "other": "models:/a@b"}
    assert placed.log.folder == tmp_path / "log"
    text = command.Served(
        EngineOptions(chat_template="{{ x }}" * 999), {}, None, log, Settings(), 1, False, 1, True
    )
    assert text.placed().options.chat_template == "{{ x }}" * 999
