"""What is refused: with one sentence in OpenAI's form, and never a 5xx for what a client sent."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from effort import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import SecretStr
from serve_toys import Served, served, toy_engine, until

from router.records import RouteChoice
from router.serve.app import Settings
from router.serve.errors import ApiError
from router.serve.parsing import Limits, RequestParser
from router.serve.replies import ChatReply
from router.serve.scheduler import Scheduler
from router.serve.schemas import ChatBody

USER = {"role": "user", "content": "abcabc"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refused(made: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert made.status_code == status, made.text
    assert set(made.json()) == {"error"}
    error: dict[str, Any] = made.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({}, "messages", "required"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages", "empty"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages.0.role", "should be"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "half a"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages.0.content", "only text"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": 5e-324}, None, "temperature must be 0 or at least 1e-30"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"max_tokens": 65}, "max_tokens", "at most 64"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "differ"),
        ({"n": 0}, "n", "greater"),
        ({"n": 9}, "n", "at most 8"),
        ({"seed": 2**63}, "seed", "less"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
         "messages.0.content", "only text"),
        ({"stop": [""]}, "stop", "1 to 1000"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"top_logprobs": 2}, None, "logprobs: true"),
        ({"stream_options": {"include_usage": True}}, None, "stream: true"),
        ({"response_format": {"type": "json_object"}}, "response_format", "tokenizer"),
        ({"frequency_penalty": 1}, "frequency_penalty", "not supported"),
        ({"tempature": 1}, "tempature", "unknown field"),
        ({"arm": "huge"}, "arm", "autoregressive, copy"),
        ({"policy": "mine"}, "policy", "default"),
        ({"model": "copy", "arm": "beams"}, "arm", "several"),
        ({"model": "copy", "speculative": False}, "arm", "several"),
        ({"arm": "copy", "dynamic": True}, "dynamic", "no policy chooses"),
        ({"arm": "beams", "logprobs": True}, None, "gives no logprobs"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_400(
    http: httpx.Client, body: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    usual = {} if body == {} else {"messages": [USER]}
    more = {} if "stream_options" in body else {"stream": stream}
    error = refused(http.post(CHAT, content=dumps(usual | body | more), headers=JSON))
    assert error["param"] == param and words in error["message"]
    assert error["type"] == "invalid_request_error"


NULLS = (
    "arm", "audio", "frequency_penalty", "functions", "logit_bias", "max_tokens", "model", "n",
    "policy", "prediction", "reasoning_effort", "response_format", "seed", "stop", "stream_options",
    "temperature", "tools", "top_p", "user", "whatever_comes_next",
)  # fmt: skip


def test_null_asks_for_nothing(http: httpx.Client) -> None:
    for body in (dict.fromkeys(NULLS), *({name: None} for name in NULLS)):
        made = http.post(CHAT, json={"messages": [USER], "max_completion_tokens": 2, **body})
        assert made.status_code == 200, (body, made.text)


JSON = {"Content-Type": "application/json"}


def dumps(body: Any) -> str:
    import json

    return json.dumps(body)


@pytest.fixture(scope="module")
def strict() -> Any:
    limits = Limits(most_tokens=64, most_answers=8)
    with served(Settings(limits, max_body=5000)) as running:
        yield running


@pytest.fixture(scope="module")
def http(strict: Served) -> Any:
    with strict.http() as client:
        yield client


def test_prompts_of_no_use(http: httpx.Client) -> None:
    for prompt in ("", [], [[]], ["a", 3], {"a": 1}, None):
        assert refused(http.post(TEXT, json={"prompt": prompt}))["param"] == "prompt"
    for ids in ([99], [-1], [[1], [10**30]]):
        assert refused(http.post(TEXT, json={"prompt": ids}))
    error = refused(http.post(TEXT, json={"prompt": [1] * 500, "max_tokens": 20}))
    assert error["code"] == "context_length_exceeded" and "500 tokens" in error["message"]
    said = http.post(CHAT, json={"messages": [{"role": "user", "content": "a" * 500}]})
    assert said.json()["usage"]["completion_tokens"] <= 12  # what the context leaves


def test_an_answer_shares_no_context_with_what_an_encoder_reads() -> None:
    engine: Any = toy_engine()
    engine.target.start_id = 0
    parser = RequestParser(engine, [], Limits())

    def longest(prompt_tokens: int) -> int:
        asked = ChatBody(messages=[{"role": "user", "content": "a" * prompt_tokens}])
        (made,) = asyncio.run(parser.requests(asked, RouteChoice("copy"), "here"))
        return made.request.max_new_tokens

    assert longest(10) == longest(512) == 511
    with pytest.raises(ApiError, match="but the context holds 512"):
        longest(513)


def test_what_is_no_request(strict: Served) -> None:
    with strict.http() as http:
        assert "not JSON" in refused(http.post(CHAT, content="{", headers=JSON))["message"]
        assert refused(http.post(CHAT, content="", headers=JSON))
        assert refused(http.post(CHAT, content=b"\xff\xfe", headers=JSON))
        assert refused(http.post(CHAT, content="[1]", headers=JSON))
        plain = {"Content-Type": "application/x-www-form-urlencoded"}
        said = refused(http.post(CHAT, content=dumps({"messages": [USER]}), headers=plain))
        assert "Content-Type application/json" in said["message"]
        assert refused(http.post(CHAT, content=dumps({"messages": [USER]})), 400)  # no JSON
        assert refused(http.get(CHAT), 405)
        assert "GET /v2" in refused(http.get("/v2"), 404)["message"]
        long = dumps({"messages": [{"role": "user", "content": "a" * 6000}]})
        assert "5000 bytes" in refused(http.post(CHAT, content=long, headers=JSON), 413)["message"]
        parts = iter([long[:3000].encode(), long[3000:].encode()])  # chunked: no length is told
        assert refused(http.post(CHAT, content=parts, headers=JSON), 413)
    with pytest.raises(openai.NotFoundError) as missing:
        strict.client().chat.completions.create(model="gpt", messages=[USER])
    assert missing.value.code == "model_not_found"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5)
    | st.floats() | st.sampled_from(["auto", "copy", "user", "text"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["model", "arm", "policy", "messages", "prompt", "temperature", "top_p", "top_k", "seed",
     "stop", "n", "logprobs", "top_logprobs", "stream", "stream_options", "max_tokens",
     "repetition_penalty", "dynamic", "explain", "ignore_eos", "logit_bias", "best_of"]
)  # fmt: skip


@examples(80, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([CHAT, TEXT]), st.dictionaries(FIELDS, VALUES, max_size=4))
def test_nothing_a_client_sends_is_a_server_error(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    body = {"max_tokens": 2, "messages": [USER]} | body if path == CHAT else (
        {"max_tokens": 2, "prompt": "ab"} | body
    )  # fmt: skip
    made = http.post(path, content=dumps(body), headers=JSON)
    if made.status_code != 200:
        assert made.status_code in (400, 404)
        refused(made, made.status_code)


def test_the_api_describes_itself(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {CHAT, TEXT, "/v1/models", "/health", "/ready", "/metrics", "/stats"} <= set(paths)


def test_a_key_is_asked_for() -> None:
    with served(Settings(api_key=SecretStr("geheim-ß"))) as toy, toy.http() as http:
        for path in ("/health", "/ready"):
            assert http.get(path).status_code == 200
        for path in ("/v1/models", "/stats", "/metrics"):
            assert refused(http.get(path), 401)["code"] == "invalid_api_key"
            for wrong in ("Bearer geheim", "Basic geheim"):
                made = http.get(path, headers={"Authorization": wrong})
                assert refused(made, 401) and made.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer geheim-ß".encode()}
        assert http.get("/stats", headers=right).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            toy.client("wrong").models.list()


def test_a_full_queue_is_a_429() -> None:
    with served(places=1, pause_s=0.02) as toy, toy.http() as http:
        body = {"messages": [USER], "max_tokens": 60}
        with ThreadPoolExecutor(2) as pool:
            pool.submit(http.post, CHAT, json=body)
            assert until(lambda: toy.scheduler.running == 1)
            pool.submit(http.post, CHAT, json=body)
            assert until(lambda: toy.scheduler.waiting == 1)
            made = http.post(CHAT, json={"messages": [USER]})
        assert refused(made, 429)["code"] == "queue_full" and int(made.headers["Retry-After"]) >= 1
        assert http.post(CHAT, json={"messages": [USER], "max_tokens": 2}).status_code == 200


def test_an_answer_that_takes_too_long() -> None:
    with served(Settings(timeout_s=0.2), pause_s=0.02) as toy, toy.http() as http:
        body = {"messages": [USER], "max_tokens": 400}
        assert "0.2 s" in refused(http.post(CHAT, json=body), 504)["message"]
        assert until(lambda: toy.scheduler.running == 0)
        text = http.post(CHAT, json=body | {"stream": True}).text
        assert "timeout_error" in text.split("\n\n")[-2] and "[DONE]" not in text
        with pytest.raises(openai.APIError, match=r"0\.2 s"):
            list(toy.client().chat.completions.create(model="auto", stream=True, **body))
        assert until(lambda: 'outcome="timeout"} 3.0' in http.get("/metrics").text)


def test_a_server_whose_scheduler_has_ended_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a proxy sends requests elsewhere."""
    with served() as toy:
        assert httpx.get(f"{toy.url}/ready").status_code == 200
        monkeypatch.setattr(Scheduler, "alive", False)
        assert httpx.get(f"{toy.url}/ready").status_code == 503


def test_while_it_drains_new_requests_are_refused_and_old_ones_end() -> None:
    with served(pause_s=0.02) as toy, toy.http() as http:
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(http.post, CHAT, json={"messages": [USER], "max_tokens": 60})
            assert until(lambda: toy.scheduler.running == 1)
            drained = pool.submit(toy.scheduler.drain, 10)
            assert until(lambda: toy.scheduler.draining)
            assert httpx.get(f"{toy.url}/ready").status_code == 503
            assert httpx.get(f"{toy.url}/health").status_code == 200
            made = httpx.post(f"{toy.url}{CHAT}", json={"messages": [USER]})
            assert refused(made, 503)["code"] == "shutting_down"
        told = asked.result()
        assert told.status_code == 200 and told.json()["usage"]["completion_tokens"] > 1
        assert drained.result()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_when_its_client_leaves(stream: bool) -> None:
    with served(pause_s=0.02) as toy:
        body = {"messages": [USER], "max_tokens": 400, "stream": stream}
        with toy.http() as http:
            if stream:
                with http.stream("POST", CHAT, json=body) as made:
                    lines = made.iter_lines()  # httpx leaves once nothing refers to it
                    next(lines)
                    assert toy.scheduler.running == 1
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post(CHAT, json=body, timeout=0.2)
        assert until(lambda: toy.scheduler.running == 0, 2)  # whole, it takes 4 s or more
        with toy.http() as http:
            assert until(lambda: 'outcome="cancelled"} 1.0' in http.get("/metrics").text)
            assert http.post(CHAT, json=body | {"max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_forgotten(stream: bool) -> None:
    with served(pause_s=0.02) as toy, toy.http() as http:
        body = {"messages": [USER], "max_tokens": 100}
        with ThreadPoolExecutor(1) as pool:
            pool.submit(httpx.post, f"{toy.url}{CHAT}", json=body, timeout=20)
            assert until(lambda: toy.scheduler.running == 1)
            with pytest.raises(httpx.ReadTimeout):
                http.post(CHAT, json={"messages": [USER], "stream": stream}, timeout=0.3)
            assert until(lambda: toy.scheduler.waiting == 0)
            assert toy.scheduler.running == 1  # the other client's answer goes on
        found = http.get("/metrics").text
        assert 'draftpick_requests_total{arm="",outcome="cancelled"} 1.0' in found


def test_a_failing_engine_is_a_500_that_tells_nothing() -> None:
    with served() as toy, toy.http() as http:
        toy.engine.target.extend = None
        error = refused(http.post(CHAT, json={"messages": [USER]}), 500)
        assert "NoneType" not in error["message"] and error["code"] == "internal_error"


def test_a_reply_that_fails_is_an_orderly_500(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "last"):
        monkeypatch.setattr(ChatReply, name, lambda *_: 1 / 0)
    with served() as toy, toy.http() as http:
        made = http.post(CHAT, json={"messages": [USER]})
        assert refused(made, 500)["code"] == "internal_error"
        streamed = http.post(CHAT, json={"messages": [USER], "stream": True})
        assert '"code":"internal_error"' in streamed.text.split("\n\n")[-2]
        connections = [each.extensions["network_stream"] for each in (made, streamed)]
        assert connections[0] is connections[1]
