"""Serving arms that are servers: answers, counts, several at once, and servers that fail."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from endpoint_toys import ANSWER, CHAT, PROMPT, asked, events, serving, text_of
from serve_toys import Heard, Served, until

from decoders.common.errors import Cancelled
from decoders.endpoints import threaded
from decoders.records import Request
from decoders.testing.fake_server import FakeEndpoint
from router.records import RouteChoice
from router.serve import scheduler as desk_module
from router.serve.scheduler import GenerationRequest


@pytest.fixture
def three() -> Iterator[tuple[Served, FakeEndpoint, FakeEndpoint, httpx.Client]]:
    """A server, the two that it asks, and a client of it."""
    with serving() as running, running[0].http() as http:
        yield *running, http


def ask(server: Served, prompt: str) -> str:
    with server.http() as http:
        message = {"role": "user", "content": prompt}
        return text_of(http.post(CHAT, json=asked(messages=[message])))


def test_a_whole_answer_has_the_endpoints_own_counts(three: tuple[Any, ...]) -> None:
    _, first, _, http = three
    first.counted = 9
    response = http.post(CHAT, json=asked(temperature=0.5, seed=3))
    assert text_of(response) == ANSWER
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    counts = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    assert response.json()["usage"] == counts
    named = {name: response.headers[f"x-draftpick-{name}"] for name in ("arm", "reason")}
    assert named == {"arm": "first", "reason": "best"}
    told = first.asked[-1]
    assert (told["temperature"], told["seed"], told["max_tokens"]) == (0.5, 3, 16)
    assert "vllm:prompt_tokens_total 5.0" in http.get("/metrics").text
    assert http.get("/stats").json()["arms"]["first"]["requests"] == 1
    (cut,) = http.post(CHAT, json=asked(max_tokens=2)).json()["choices"]
    assert cut["finish_reason"] == "length"


def test_a_streamed_answer_by_the_official_client(three: tuple[Any, ...]) -> None:
    server, first, _, _ = three
    first.step_s = lambda prompt: 0.01
    wanted: Any = asked(model="second", stream=True, stream_options={"include_usage": True})
    raw = server.client().chat.completions.with_raw_response.create(**wanted)
    assert raw.headers["x-draftpick-arm"] == "second"
    *chunks, counts = raw.parse()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "second best"
    assert (counts.usage.prompt_tokens, counts.usage.completion_tokens) == (5, 2)
    words = list(server.client().chat.completions.create(**asked(model="auto", stream=True)))
    assert [chunk.choices[0].delta.content for chunk in words[1:6]] == [
        "WHY", " IS", " THE", " SKY", " BLUE",
    ]  # fmt: skip


def test_several_are_answered_at_once(three: tuple[Any, ...]) -> None:
    server, first, _, http = three
    together = threading.Barrier(3)

    def words(prompt: str) -> list[str]:
        together.wait(10)  # breaks where fewer than three are asked at once
        return [f"you said {prompt}"]

    first.words = words
    prompts = [f"word{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(partial(ask, server), prompts))
    assert told == [f"you said {prompt}" for prompt in prompts]
    made = http.post(CHAT, json=asked(n=3)).json()
    assert [one["message"]["content"] for one in made["choices"]] == [f"you said {PROMPT}"] * 3
    assert made["usage"]["prompt_tokens"] == 5  # once


def test_a_request_that_comes_while_others_are_answered_is_begun_at_once(
    three: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a slot whose answer has ended is free at once: nothing waits for a step's time."""
    monkeypatch.setattr(threaded, "WAIT_S", 1000.0)
    server, first, _, _ = three
    asked_again = threading.Event()

    def words(prompt: str) -> list[str]:
        if prompt == "the first":
            assert asked_again.wait(20)
        else:
            asked_again.set()
        return ["done"]

    first.words = words
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(ask, server, "the first")
        until(lambda: len(first.asked) == 1)
        assert pool.submit(ask, server, "another").result(30) == waits.result(30) == "done"
    assert [ask(server, f"later {n}") for n in range(5)] == ["done"] * 5


def test_the_next_turn_of_a_long_conversation_stays(three: tuple[Any, ...]) -> None:
    _, _, second, http = three
    message = {"role": "user", "content": PROMPT * 200}
    http.post(CHAT, json=asked(messages=[message], model="second"))
    turns = [message, {"role": "assistant", "content": "second best"}, message]
    answer = http.post(CHAT, json=asked(messages=turns))
    named = {name: answer.headers[f"x-draftpick-{name}"] for name in ("arm", "reason")}
    assert named == {"arm": "second", "reason": "conversation"} and len(second.asked) == 2


def test_completions_are_texts(three: tuple[Any, ...]) -> None:
    _, first, _, http = three
    made = http.post("/v1/completions", json={"prompt": "a b", "max_tokens": 4})
    assert made.json()["choices"][0]["text"] == "A B"
    for prompt in ([1, 2, 3], ["a b", list(b'[{"role": "user", "content": "x"}]')]):
        refused = http.post("/v1/completions", json={"prompt": prompt})
        assert refused.status_code == 400 and "not token ids" in refused.text
    refused = http.post("/v1/completions", json={"prompt": "a b", "logprobs": 1})
    assert refused.status_code == 400 and "are not read" in refused.text
    assert len(first.asked) == 1


def test_a_whole_answer_that_breaks_off_is_given_by_the_next_best(three: tuple[Any, ...]) -> None:
    _, first, second, http = three
    first.cut_after = 2
    response = http.post(CHAT, json=asked(explain=True))
    assert text_of(response) == "second best"
    assert response.headers["x-draftpick-arm"] == "second"
    assert response.json()["choices"][0]["draftpick"]["arm"] == "second"
    assert response.json()["usage"]["completion_tokens"] == 2
    named = http.post(CHAT, json=asked(model="first"))  # who names an arm gets that or nothing
    assert (named.status_code, named.json()["error"]["code"]) == (503, "arm_down")
    assert len(second.asked) == 1


def test_a_stream_that_breaks_off_ends_with_the_servers_error(
    three: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    _, first, _, http = three
    first.cut_after = 2
    *told, last = events(http.post(CHAT, json=asked(stream=True)))
    words = [chunk["choices"][0]["delta"].get("content") for chunk in told]
    assert words == ["", "WHY", " IS"]
    error = last["error"]
    assert (error["type"], error["code"]) == ("server_error", "upstream_broke_off")
    assert "in the middle of its answer" in caplog.text
    again = http.post(CHAT, json=asked(stream=True))  # it is known to be down
    assert again.headers["x-draftpick-arm"] == "second"


@pytest.mark.parametrize("status", [401, 403, 404, "no key"])
def test_a_refusal_of_this_server_is_its_own_fault(
    status: int | str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with serving(**({"api_key_env": "NO_KEY"} if status == "no key" else {})) as running:
        server, first, _ = running
        if isinstance(status, int):
            first.status = status
        with pytest.raises(openai.APIStatusError) as error:
            server.client().chat.completions.create(model="auto", **asked())
        assert error.value.status_code == 502 and error.value.code == "upstream_refused"
        assert "told to say" not in error.value.message and "NO_KEY" not in error.value.message
        assert (f"told to say {status}" if first.asked else "NO_KEY, which is not") in caplog.text


@pytest.mark.parametrize("status", [400, 422])
def test_a_refusal_of_the_request_is_the_clients_fault(three: tuple[Any, ...], status: int) -> None:
    _, first, _, http = three
    first.status = status
    response = http.post(CHAT, json=asked())
    assert response.status_code == 400
    assert f"HTTP {status} (told to say {status})" in response.json()["error"]["message"]


def test_an_endpoint_is_left_when_its_client_goes(three: tuple[Any, ...]) -> None:
    server, first, _, http = three
    first.step_s, first.words = lambda prompt: 0.02, lambda prompt: [" on"] * 500
    with http.stream("POST", CHAT, json=asked(stream=True, max_tokens=500)) as response:
        next(response.iter_lines())
    assert until(lambda: first.left == 1) and until(lambda: server.scheduler.running == 0)


def test_an_endpoint_that_says_nothing_does_not_hold_up_the_end(
    three: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, first, _, _ = three
    said = threading.Event()
    first.words = lambda prompt: ["late"] * said.wait(20)
    monkeypatch.setattr(desk_module, "END_S", 0.1)
    ids, told = server.engine.encode_text(PROMPT), Heard()
    server.scheduler.submit(GenerationRequest(ids, Request(), None, RouteChoice(), "1", "me"), told)
    assert until(lambda: first.asked)
    ending = threading.Thread(target=server.scheduler.close)
    ending.start()
    ending.join(5)
    assert not ending.is_alive() and isinstance(told.error, Cancelled)
    said.set()


def test_a_thread_that_cannot_be_started_costs_one_answer(
    three: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, http = three
    with monkeypatch.context() as patch:
        patch.setattr(threaded, "threading", SimpleNamespace(Thread=lambda **_: 1 / 0))
        assert http.post(CHAT, json=asked()).status_code == 500
    assert text_of(http.post(CHAT, json=asked())) == ANSWER


def test_an_endpoint_s_own_drafts_are_counted() -> None:
    """Only where it tells the positions; a count of its own rounds is no guess."""
    told = {
        "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 5,
        "num_spec_steps": 4,
        "acceptance_histogram": [1, 2, 0, 1],
    }
    with serving() as (server, first, second), server.http() as http:
        first.more = {"metrics": {"speculative_decoding": told}}
        second.more = {"timings": {"draft_n": 9, "draft_n_accepted": 7}}
        for name in ("first", "second"):
            assert http.post(CHAT, json=asked(model=name)).status_code == 200
        arms = http.get("/stats").json()["arms"]
        assert (arms["first"]["drafts"], arms["first"]["drafted"]) == (4, 12)
        assert arms["first"]["accepted"] == [3, 1, 1]
        assert arms["first"]["acceptance_rate"] == pytest.approx(5 / 12)
        assert arms["second"]["drafts"] == 0
        told |= dict.fromkeys(told, 0) | {"acceptance_histogram": [0, 0, 0]}  # of a single token
        second.more = {"metrics": {"speculative_decoding": told}}
        assert http.post(CHAT, json=asked(model="second")).status_code == 200
        assert http.get("/stats").json()["arms"]["second"]["drafts"] == 0
        page = http.get("/metrics").text
        assert 'vllm:spec_decode_num_accepted_tokens_total{arm="first"} 5.0' in page
        assert 'per_pos_total{arm="first",position="0"} 3.0' in page
