"""What servers have besides our requests: other clients', and what they keep of conversations."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from serve_toys import until

from collect.endpoints.executor import Endpoints
from collect.queries import Query
from collect.sweeps.batch import SweepOptions
from collect.sweeps.run import sweep
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.endpoints import load
from decoders.endpoints.chat import Conversations
from decoders.endpoints.engine import EndpointEngine
from decoders.endpoints.load import Load, load_on
from decoders.records import Request
from decoders.testing.fake_server import FakeEndpoint, listening
from policies import fixed_policy
from router.logs.reader import read_log
from router.logs.writer import DecisionLog
from router.records import AskOptions
from router.routing.router import Router

Servers = tuple[FakeEndpoint, FakeEndpoint]
LONG = "a word " * 400
VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
"""
SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 7.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m"} 1.0
"""
LLAMA = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 0
"""


@pytest.fixture
def two() -> Iterator[Servers]:
    servers = FakeEndpoint(), FakeEndpoint()
    with listening(*servers):
        yield servers


def engine_over(*servers: FakeEndpoint, pages: bool = False) -> EndpointEngine:
    """pages: whether their pages of metrics are read."""
    arms = {}
    for name, server in zip(("first", "second"), servers, strict=False):
        page = {"metrics_url": server.metrics_url} if pages else {}
        arms[name] = recipe(name=name, kind="endpoint", url=server.url, model="m", **page)
    return EndpointEngine(arms)


# -- their load -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page, told", [(VLLM, Load(5, 4)), (SGLANG, Load(7, 1)), (LLAMA, Load(2, 0))]
)
def test_the_pages_of_servers(page: str, told: Load) -> None:
    assert load_on(page, "it") == told


@pytest.mark.parametrize(
    "page",
    [
        "",
        VLLM.replace("num_requests_waiting", "num_requests_queued"),  # changed its names
        SGLANG.replace("7.0", "-1"),
        SGLANG.replace("7.0", "NaN"),
        LLAMA.replace("processing 2", "processing 1e300"),
        "<html>",
    ],
)
def test_a_page_that_does_not_say_is_refused(page: str) -> None:
    with pytest.raises(DraftpickError, match=r"does not say how many|no page of metrics"):
        load_on(page, "it")


def test_draftpicks_own_page_is_known() -> None:
    from router.serve.metrics import Metrics

    metrics = Metrics("t", lambda: None, ["a"], lambda: 2, lambda: 1)
    assert load_on(metrics.exposition()[0].decode(), "it") == Load(2, 1)


class Heard:
    """A policy that takes its first arm; `read` has what it was given: the requests that run."""

    def __init__(self, arms: tuple[str, ...]) -> None:
        self._fixed = fixed_policy(arms, arms[0])
        self.origin = replace(self._fixed.origin, features=("requests-running",))
        self.read: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fixed, name)

    def choose(self, x: np.ndarray, rng: Any = None) -> Any:
        self.read.append(round(float(np.expm1(x[-1]))))
        return self._fixed.choose(x, rng)


def test_a_policy_reads_the_busiest_servers_requests(
    two: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "EVERY_S", 0.01)
    first, second = two
    first.metrics, second.metrics = SGLANG, VLLM
    engine, policy = engine_over(first, second, pages=True), Heard(("first", "second"))
    router = Router(engine, policy)
    assert until(lambda: engine.requests_under_way == 9)
    router.generate("one two", max_new_tokens=2)
    assert policy.read == [9]
    router.respond("one two", Request(2), AskOptions(running=20))  # of our own, where more
    assert policy.read == [9, 20]
    second.metrics = None  # a server that has gone counts no longer
    monkeypatch.setattr(load, "TOO_OLD_S", 0.05)
    assert until(lambda: engine.requests_under_way == 8)


def test_pages_are_read_as_long_as_there_is_an_engine(
    two: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "EVERY_S", 0.01)
    engine = engine_over(two[0], pages=True)
    assert engine.requests_under_way == 0
    loads = ref(engine.loads)
    del engine
    assert until(lambda: loads() is None)


def test_a_page_that_says_nothing_is_told_of_once(
    two: Servers,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "EVERY_S", 0.001)
    first = two[0]
    first.metrics = "other_gauge 1\n"
    engine = engine_over(first, pages=True)
    assert engine.requests_under_way == 0
    assert until(lambda: "does not say how many requests" in capsys.readouterr().err)
    time.sleep(0.05)
    assert capsys.readouterr().err == "" and engine.requests_under_way == 0


def test_a_collection_says_that_a_server_has_other_requests(
    two: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = two[0]
    first.metrics = SGLANG
    queries = [Query(str(n), "t", (f"word {n}",)) for n in range(10)]
    engine = engine_over(first, pages=True)
    options = Endpoints.adapted(SweepOptions(max_new_tokens=4))
    sweep(engine, Endpoints(engine), queries, tmp_path / "rewards", options)
    told = capsys.readouterr().err
    assert told.count("'first' has other requests, 7 running and 1 waiting") == 1
    first.metrics_status = 501  # as llama.cpp's without its option
    sweep(engine, Endpoints(engine), queries, tmp_path / "without", options)
    told = capsys.readouterr().err
    assert told.count("no metrics page of arm 'first'") == 1 and "load is not known" in told
    first.metrics, first.metrics_status = VLLM.replace("running", "going"), 200
    with pytest.raises(DraftpickError, match="does not say how many"):
        sweep(engine, Endpoints(engine), queries, tmp_path / "other", options)
    first.metrics = None
    with pytest.raises(DraftpickError, match="check the arm's `metrics_url`"):
        sweep(engine, Endpoints(engine), queries, tmp_path / "other", options)


def test_the_page_is_no_part_of_what_was_collected(two: Servers) -> None:
    with_page = engine_over(two[0], pages=True)
    assert with_page.arms_fingerprint(["first"]) == engine_over(two[0]).arms_fingerprint(["first"])


@pytest.mark.parametrize("url", ["metrics", "ftp://h/metrics", "http://user:word@h/metrics"])
def test_a_page_needs_an_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"give an address|password or key"):
        recipe(name="a", kind="endpoint", url="http://h/v1", model="m", metrics_url=url)


# -- conversations --------------------------------------------------------------------------------


def chat(*texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def test_a_conversation_is_known_by_what_was_asked() -> None:
    known = Conversations(least=10, most=2)
    known.answered(chat("first question"), "a")
    assert known.arm_of(chat("first question")) is None  # nothing was answered yet
    assert known.arm_of(chat("first question", "any answer", "next")) == "a"
    assert known.arm_of(chat("another question", "any answer", "next")) is None
    known.answered(chat("first question", "any answer", "next"), "b")
    assert known.arm_of(chat("first question", "any answer", "next", "and", "so on")) == "b"
    assert Conversations(least=1000).arm_of(chat("q", "a", "n")) is None
    known.answered(chat("first question"), "a")  # again, so that the other is the oldest
    known.answered(chat("a third one"), "c")
    assert known.arm_of(chat("first question", "any answer", "next")) == "a"
    turns = chat("first question", "any answer", "next", "and", "so on")
    assert known.arm_of(turns) is None  # forgotten


def test_short_conversations_are_not_held() -> None:
    known = Conversations(least=2048)
    for text, kept in (("short", None), (LONG, "a")):
        known.answered(chat(text), "a")
        assert known.arm_of(chat(text, "an answer", "next")) == kept
    never = Conversations(least=None)
    never.answered(chat(LONG), "a")
    assert never.arm_of(chat(LONG, "an answer", "next")) is None


def test_a_conversation_stays_with_its_server(two: Servers, tmp_path: Path) -> None:
    engine = engine_over(*two)
    log = DecisionLog(tmp_path / "log")
    router = Router(engine, fixed_policy(("first", "second"), "first"), log=log)
    asked = chat(LONG)
    one = router.respond(asked, Request(4), AskOptions(arm="second"))
    turns = chat(LONG, one.result.text, "and then?")
    assert router.respond(turns, Request(4)).arm == "second"  # the policy would take the first
    assert router.respond(chat("short"), Request(4)).arm == "first"
    assert router.respond(turns, Request(4), AskOptions(arm="first")).arm == "first"
    third = [*turns, *chat("so", "it goes on")[1:], *chat("and now?")]
    assert router.respond(third, Request(4)).arm == "first"  # where it was answered last
    lines = read_log(tmp_path / "log").decisions
    assert [line.choice for line in lines] == ["forced", "kept", "best", "forced", "kept"]


def test_a_conversation_leaves_a_lossy_server_where_losses_are_bounded(
    two: Servers,
) -> None:
    policy: Any = fixed_policy(("first", "second"), "first")
    policy.lossless = ["first"]
    router = Router(engine_over(*two), policy)
    router.respond(chat(LONG), Request(4), AskOptions(arm="second"))
    turns = chat(LONG, "an answer", "and then?")
    assert router.respond(turns, Request(4)).arm == "first"


def test_a_conversation_moves_where_its_server_dies(two: Servers) -> None:
    engine = engine_over(*two)
    router = Router(engine, fixed_policy(("first", "second"), "first"))
    asked = chat(LONG)
    router.respond(asked, Request(4), AskOptions(arm="second"))
    turns = chat(LONG, "an answer", "and then?")
    two[1].status = 503
    assert router.respond(turns, Request(4)).arm == "first"
    asked_so_far = len(two[1].asked)
    two[1].status = 200
    assert router.respond(turns, Request(4)).arm == "first"  # while the other is left alone
    assert len(two[1].asked) == asked_so_far
