"""Tools, response formats and log-probabilities go to endpoints as they came, and what these write
comes back unchanged."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from endpoint_toys import CHAT, FIRST_BEST, asked, events, serving
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from serve_toys import served, until

from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.endpoints.chat import chat_ids
from decoders.endpoints.engine import EndpointEngine
from decoders.endpoints.fields import Joined, fields_of
from decoders.records import Request
from decoders.testing.fake_server import FakeEndpoint, listening
from router.logs.reader import read_log

NOW = {"type": "function", "function": {"name": "now"}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
CALLS = [
    {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
    for n, name, arguments in ((7, "weather", '{"city": 1}'), (8, "now", ""))
]


@contextmanager
def over(fake: FakeEndpoint) -> Iterator[EndpointEngine]:
    """Two arms that are one server."""
    with listening(fake):
        body = {"kind": "endpoint", "model": "m", "url": fake.url}
        yield EndpointEngine({name: recipe(name=name, **body) for name in FIRST_BEST.arms})


def part(index: int, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    function = more.pop("function", {}) | ({} if arguments is None else {"arguments": arguments})
    return {"delta": {"tool_calls": [{"index": index, "function": function, **more}]}}


STREAM = [
    {"delta": {"role": "assistant", "content": "one moment"}},
    part(0, "", id="call_7", type="function", function={"name": "weather"}),
    part(0, '{"city"'),
    part(0, ": 1}"),
    part(1, "", id="call_8", type="function", function={"name": "now"}),
    {"delta": {}, "finish_reason": "tool_calls"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_back_unchanged(stream: bool) -> None:
    with serving() as (server, first, _):
        first.choices, first.counted = STREAM, 21
        if stream:
            with server.client().chat.completions.stream(
                model="auto", tools=[WEATHER], **asked(stream_options={"include_usage": True})
            ) as told:
                made = told.get_final_completion()
        else:
            made = server.client().chat.completions.create(model="auto", tools=[WEATHER], **asked())
        (choice,) = made.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "one moment"
        told = [call.model_dump(exclude={"index"}) for call in choice.message.tool_calls or []]
        for call in told:
            call["function"].pop("parsed_arguments", None)
        assert told == CALLS
        assert made.usage and made.usage.completion_tokens == 21
        assert first.asked[-1]["tools"] == [WEATHER]


def test_an_answer_of_calls_alone_has_no_content() -> None:
    with serving() as (server, first, _), server.http() as http:
        first.choices, first.counts = STREAM[1:], False
        message = http.post(CHAT, json=asked(tools=[WEATHER])).json()["choices"][0]["message"]
        assert message["content"] is None and message["tool_calls"] == CALLS
        told = events(http.post(CHAT, json=asked(tools=[WEATHER], stream=True)))
        deltas = [chunk["choices"][0]["delta"] for chunk in told]
        assert deltas[1:-1] == [each["delta"] for each in STREAM[1:-1]]
        assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_a_server_that_does_not_stream(stream: bool) -> None:
    whole = {"message": {"content": None, "tool_calls": CALLS}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 5, "completion_tokens": 9}
    with serving() as (server, first, _), server.http() as http:
        first.raw = json.dumps({"choices": [whole], "usage": usage}).encode()
        first.headers = {"Content-Type": "application/json"}
        made = http.post(CHAT, json=asked(tools=[WEATHER], stream=stream))
        if not stream:
            assert made.json()["choices"][0]["message"]["tool_calls"] == CALLS
            assert made.json()["usage"]["completion_tokens"] == 9
            return
        told = [each["choices"][0]["delta"] for each in events(made)]
        numbered = [call | {"index": number} for number, call in enumerate(CALLS)]
        assert [each["tool_calls"] for each in told if "tool_calls" in each] == [numbered]


def test_the_fields_go_on_as_they_came() -> None:
    class Trip(BaseModel):
        city: str

    fields: dict[str, Any] = {
        "tools": [WEATHER, NOW],
        "tool_choice": {"type": "function", "function": {"name": "now"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": {}}},
        "structured_outputs": {"json": {"type": "object"}},
        "logprobs": True,
        "top_logprobs": 2,
    }
    calls = [{"role": "assistant", "content": "", "tool_calls": CALLS[:1]}]
    told = [{"role": "tool", "content": "9", "tool_call_id": "call_7"}]
    asked_first = asked()["messages"]
    with serving() as (server, first, _), server.http() as http:
        body = asked(**fields) | {"messages": [*asked_first, *calls, *told]}
        assert http.post(CHAT, json=body).status_code == 200
        assert {name: first.asked[-1].get(name) for name in fields} == fields
        assert first.asked[-1]["messages"] == [*asked_first, *calls, *told]
        nothing = {name: None for name in fields} | {"tools": [], "tool_choice": "auto"}
        assert http.post(CHAT, json=asked(**nothing)).status_code == 200
        assert not fields.keys() & first.asked[-1].keys()
        first.words = lambda prompt: ['{"city":', ' "oslo"}']
        made = server.client().chat.completions.parse(
            model="auto", messages=asked_first, response_format=Trip
        )
        assert made.choices[0].message.parsed == Trip(city="oslo")
        first.refuses = ("response_format",)
        refused = http.post(CHAT, json=asked(response_format={"type": "json_object"}))
        assert refused.status_code == 400
        assert "response_format" in refused.json()["error"]["message"]
        assert http.post(CHAT, json=asked()).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters":
            {"type": "object", "default": float("nan")}}}]}, "tools cannot be sent"),
        ({"structured_outputs": {"json": {"title": "\ud800"}}}, "structured_outputs cannot"),
        ({"messages": [{"role": "tool", "content": "9", "name": "\ud800"}]}, "messages.0.name"),
    ],
)  # fmt: skip
def test_what_no_server_takes_is_the_clients_fault(body: dict[str, Any], words: str) -> None:
    sent = json.dumps(asked() | body)
    with serving() as (server, first, _), server.http() as http:
        made = http.post(CHAT, content=sent, headers={"Content-Type": "application/json"})
        assert made.status_code == 400 and words in made.json()["error"]["message"]
        assert not first.asked


@pytest.mark.parametrize("stream", [False, True])
def test_what_json_cannot_carry_is_left_out_of_an_answer(stream: bool) -> None:
    scored = {"token": "a", "logprob": -math.inf}
    with serving() as (server, first, _), server.http() as http:
        first.choices = [
            {"delta": {"content": "\ud83d\n"}, "logprobs": {"content": [scored]}},
            {"delta": {"content": "\U0001f600"}, "finish_reason": "stop"},
        ]
        made = http.post(CHAT, json=asked(logprobs=True, stream=stream))
        told = events(made) if stream else [made.json()]
    choices = [each["choices"][0] for each in told]
    texts = [(each.get("message") or each["delta"]).get("content", "") for each in choices]
    assert "".join(texts) == "\ufffd\n\U0001f600"
    assert choices[-1]["logprobs"] == {"content": [{"token": "a", "logprob": None}]}


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_and_reasons_are_the_endpoints(stream: bool) -> None:
    scored = [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []} for word in "ab"]
    with serving() as (server, first, _), server.http() as http:
        first.choices = [
            {"delta": {"content": each["token"]}, "logprobs": {"content": [each]}}
            for each in scored
        ] + [{"delta": {"refusal": "no"}, "finish_reason": "content_filter"}]
        response = http.post(CHAT, json=asked(logprobs=True, stream=stream))
        last = events(response)[-1] if stream else response.json()
        (choice,) = last["choices"]
        assert choice["logprobs"] == {"content": scored}
        assert choice["finish_reason"] == "content_filter"
        if not stream:
            assert choice["message"]["refusal"] == "no" and choice["message"]["content"] == "ab"


@pytest.mark.parametrize("counts", [True, False])
def test_a_line_in_the_log_counts_what_was_written(counts: bool, tmp_path: Path) -> None:
    with (
        over(FakeEndpoint(choices=STREAM, counted=21, counts=counts)) as engine,
        served(engine=engine, policy=FIRST_BEST, log=tmp_path) as server,
        server.http() as http,
    ):
        assert http.post(CHAT, json=asked(tools=[WEATHER])).status_code == 200
    (row,) = read_log(tmp_path).decisions
    assert row.outcome.error is None and row.outcome.wall_s
    speed = pytest.approx(21 / row.outcome.wall_s) if counts else None
    assert row.outcome.tokens_per_s == speed
    assert (row.outcome.new_tokens, row.outcome.rounds) == (21 if counts else None, 4)


def test_the_texts_of_calls_are_an_answers() -> None:
    with over(FakeEndpoint(choices=STREAM, counted=3)) as engine:
        request = Request(passed={"tools": [WEATHER]})
        made = engine.decode("first", chat_ids(asked()["messages"]), request)
    text, *calls = made.text.splitlines()
    assert text == "one moment" and [json.loads(each) for each in calls] == CALLS
    assert len(made.ids) == 3 and engine.tokenizer.decode(made.ids) == "one moment"
    with pytest.raises(DraftpickError, match="no endpoint, which alone reads tools"):
        recipe(name="plain", kind="autoregressive").check(Request(passed={"tools": []}))


CALLS_THAT_ARE_NONE = [5, "x", [5], [{"function": 5}], *([{"index": i}] for i in ("0", -1, True))]
NO_ANSWERS = [{"delta": {"tool_calls": c}, "finish_reason": "stop"} for c in CALLS_THAT_ARE_NONE]
NO_ANSWERS += [{"delta": {}, "finish_reason": each} for each in ("abort", "error", "", "null")]


def test_another_endpoint_answers_where_one_gives_up_or_writes_what_are_no_calls() -> None:
    with serving() as (server, first, _), server.http() as http:
        for choice in NO_ANSWERS:
            for stream in (False, True):
                first.choices, before = [choice], len(first.asked)
                made = http.post(CHAT, json=asked(stream=stream))
                assert len(first.asked) == before + 1
                assert made.headers["x-draftpick-arm"] == "second"  # the next best
                server.engine.wake("first")


@given(st.lists(st.tuples(st.integers(0, 2), st.text("ab", max_size=3)), max_size=8))
def test_parts_of_several_calls_may_come_in_any_order(parts: list[tuple[int, str]]) -> None:
    joined = Joined()
    for index, text in parts:
        joined.add(fields_of(part(index, text, id=f"c{index}")["delta"]))
    wanted = [
        {"id": f"c{n}", "function": {"arguments": "".join(t for i, t in parts if i == n)}}
        for n in sorted({index for index, _ in parts})
    ]
    assert joined.whole().get("tool_calls", []) == wanted


THOUGHTS = [
    {"delta": {"role": "assistant", "reasoning_content": "hm"}},
    {"delta": {"reasoning_content": ", so"}},
    {"delta": {"content": "42"}, "finish_reason": "stop"},
]


def test_thoughts_come_as_they_come() -> None:
    """And the first of them is the answer's first text."""
    with serving() as (server, first, _), server.http() as http:
        first.choices, first.counted = THOUGHTS, 9
        (choice,) = http.post(CHAT, json=asked()).json()["choices"]
        assert choice["message"]["reasoning_content"] == "hm, so"
        assert choice["message"]["content"] == "42" and choice["finish_reason"] == "stop"
        told = events(http.post(CHAT, json=asked(stream=True)))
        deltas = [each["choices"][0]["delta"] for each in told]
        assert [each for each in deltas if "reasoning_content" in each] == [
            {"reasoning_content": "hm"}, {"reasoning_content": ", so"},
        ]  # fmt: skip
        back = choice["message"] | {"reasoning": None}
        again = asked(messages=[asked()["messages"][0], back, asked()["messages"][0]])
        assert http.post(CHAT, json=again).status_code == 200
        assert first.asked[-1]["messages"][1]["reasoning_content"] == "hm, so"
        made = http.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert all("text" in each["choices"][0] for each in events(made))
        assert "".join(each["choices"][0]["text"] for each in events(made)) == "42"


def test_roles_go_on_as_they_came() -> None:
    with serving() as (server, first, _), server.http() as http:
        chat = [{"role": role, "content": "a"} for role in ("developer", "user", "assistant")]
        assert http.post(CHAT, json=asked(messages=chat)).status_code == 200
        assert first.asked[-1]["messages"] == chat


def test_the_first_thought_is_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still until the thought has been read."""
    now, read = [0.0], set[float]()

    def clock() -> float:
        read.add(now[0])
        return now[0]

    made_time = SimpleNamespace(perf_counter=clock)
    monkeypatch.setattr("decoders.endpoints.engine.time", made_time)

    def paced() -> Iterator[dict[str, Any]]:
        now[0] = 1.0
        yield THOUGHTS[0]
        assert until(lambda: 1.0 in read)
        now[0] = 3.0
        yield from THOUGHTS[1:]

    with over(FakeEndpoint(choices=paced(), counted=30)) as engine:
        made = engine.decode("first", chat_ids(asked()["messages"]), Request())
    assert (made.text, made.prefill_s, made.decode_s) == ("42", 1.0, 2.0)
    assert made.upstream and made.upstream.fields == {"reasoning_content": "hm, so"}
