"""Streams of every server in the table, in every combination of pieces."""

import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, get_args

import httpx
import pytest
from openai.types.chat.chat_completion_chunk import Choice

from decoders.arms import recipe
from decoders.common.errors import ArmDown, DraftpickError, UpstreamBroke
from decoders.endpoints.chat import chat_ids
from decoders.endpoints.engine import EndpointEngine
from decoders.endpoints.servers import (
    ENDS,
    FILTERED,
    LENGTH,
    NO_REASON,
    STOP,
    STOPPED_BY,
    THINKING,
    TOOL_CALLS,
)
from decoders.endpoints.stream import data_of
from decoders.records import DecodeResult, Request
from decoders.testing.fake_server import FakeEndpoint
from decoders.testing.toys import Streamed

HELLO = chat_ids([{"role": "user", "content": "hello"}])
EVENTS = {"Content-Type": "text/event-stream"}
DONE = b"data: [DONE]\n\n"
REASONS = get_args(get_args(Choice.model_fields["finish_reason"].annotation)[0])


@dataclass(frozen=True)
class Server:
    """A kind of server. Its chunks are OpenAI's but for what is named here.

    ends: what ends a whole answer, as in ENDS.
    breaks: the `finish_reason` of an answer that is not whole.
    thoughts: fields of a message that hold what the model thinks.
    parts: types of the parts where its `content` is a list.
    one_call: whether `tool_calls` may be a call in the place of a list.
    stopped_by: the field of a choice that names the stop string or token.
    """

    ends: Mapping[str, str]
    breaks: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    one_call: bool = False
    stopped_by: str | None = None


BOTH = {STOP: STOP, LENGTH: LENGTH}
CALLS = BOTH | {TOOL_CALLS: TOOL_CALLS}
OPENAI = CALLS | {FILTERED: FILTERED, "function_call": TOOL_CALLS}

SERVERS = {
    "OpenAI": Server(OPENAI),
    "Azure": Server(OPENAI),
    "vLLM": Server(
        CALLS | {"repetition": LENGTH},
        breaks=("abort", "error"),
        thoughts=("reasoning_content", "reasoning"),
        stopped_by="stop_reason",
    ),
    "SGLang": Server(
        OPENAI, breaks=("abort",), thoughts=("reasoning_content",), stopped_by="matched_stop"
    ),
    "llama.cpp": Server(CALLS, thoughts=("reasoning_content",)),
    "Ollama": Server(CALLS, breaks=("load", "unload"), thoughts=("reasoning",)),
    "LM Studio": Server(CALLS, thoughts=("reasoning_content", "reasoning")),
    "TGI": Server(
        CALLS | {"eos_token": STOP, "stop_sequence": STOP}, one_call=True
    ),
    "Mistral": Server(
        CALLS | {"model_length": LENGTH},
        breaks=("error",),
        parts=("text", "thinking", "reference"),
    ),
    "DeepSeek": Server(
        CALLS | {FILTERED: FILTERED},
        breaks=("insufficient_system_resource",),
        thoughts=("reasoning_content",),
    ),
    "litellm": Server(
        OPENAI | {"eos": STOP, "guardrail_intervened": FILTERED},
        breaks=("finish_reason_unspecified", "malformed_function_call"),
        thoughts=("reasoning_content",),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """One way in which an answer may come.

    thoughts: the field that they come in; "parts" for parts of the content; None for none.
    content: "text", "parts" or None.
    calls: none, "parts" of one with an index, "ids" of two with one index, "whole" ones without an
        index, or "one" in the place of a list.
    usage: where the tokens are counted: in the last chunk, in one of its own, or nowhere.
    ends: the last `finish_reason`.
    before: that of all chunks before.
    """

    thoughts: str | None
    content: str | None
    calls: str | None
    usage: str | None
    before: str | None
    ends: Any
    done: bool

    def deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": "" if self.content == "text" else None}
        if self.thoughts == "parts":
            for word in ("let ", "me"):
                part = {"type": "thinking", "thinking": [{"type": "text", "text": word}]}
                yield {"content": [part]}
        elif self.thoughts:
            yield from ({self.thoughts: word, "content": None} for word in ("let ", "me"))
        if self.content == "text":
            yield from ({"content": word} for word in ("one", " two"))
        elif self.content == "parts":
            refers = {"type": "reference", "reference_ids": [1]}
            yield {"content": [{"type": "text", "text": "one"}, refers]}
            yield {"content": [{"type": "text", "text": " two"}]}
        begun = {"type": "function", "function": {"name": "f", "arguments": ""}}
        args = [{"function": {"arguments": '{"a":'}}, {"function": {"arguments": " 1}"}}]
        if self.calls == "parts":
            for part in ({"id": "c1", **begun}, *args):
                yield {"tool_calls": [{"index": 0, **part}]}
        elif self.calls == "ids":
            for named in ("c1", "c2"):
                for part in ({"id": named, **begun}, *args):
                    yield {"tool_calls": [{"index": 0, **part}]}
        elif self.calls == "whole":
            for named in ("", ""):
                whole = {"name": "f", "arguments": '{"a": 1}'}
                yield {"tool_calls": [{"id": named, "type": "function", "function": whole}]}
        elif self.calls == "one":
            for part in ({"id": 0, **begun}, *args):
                yield {"tool_calls": {"index": 0, **part}}

    def chunks(self) -> Iterator[dict[str, Any]]:
        shared = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        counts = {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
        for delta in self.deltas():
            choice = {"index": 0, "delta": delta, "finish_reason": self.before}
            yield {**shared, "choices": [choice]}
        last = {"index": 0, "delta": {}, "finish_reason": self.ends}
        yield {**shared, "choices": [last], "usage": counts if self.usage == "last" else None}
        if self.usage == "own":
            yield {**shared, "choices": [], "usage": counts}

    def sent(self) -> bytes:
        lines = [b": keep-alive\n\n"]
        lines += [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in self.chunks()]
        return b"".join(lines + [DONE] * self.done)


def ways(server: Server) -> Iterator[Pieces]:
    thinking = [None, *server.thoughts, *(["parts"] if "thinking" in server.parts else [])]
    content = [None, "text", *(["parts"] if server.parts else [])]
    calls = [None, "parts", "ids", "whole", *(["one"] if server.one_call else [])]
    ends = [*server.ends, *server.breaks, *NO_REASON, "never heard of"]
    for pieces in product(thinking, content, calls, [None, "last", "own"], NO_REASON, ends, [1, 0]):
        yield Pieces(*pieces[:-1], done=bool(pieces[-1]))


def engine_over(answers: list[bytes]) -> EndpointEngine:
    arm = recipe(name="a", kind="endpoint", url="http://h/v1", model="m")
    engine = EndpointEngine({"a": arm}, clock=lambda: 0.0)

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=EVENTS, content=answers.pop())

    engine._connections = httpx.Client(transport=httpx.MockTransport(reply))
    return engine


def read(engine: EndpointEngine, answers: list[bytes], pieces: Pieces) -> DecodeResult | None:
    """None where the server counts as dead."""
    answers.append(pieces.sent())
    try:
        return engine.decode("a", HELLO, Request())
    except ArmDown:
        engine._breakers["a"].succeeded()
        return None


@pytest.mark.parametrize("nth", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SERVERS)
def test_each_server_in_every_combination_of_pieces(name: str, nth: int) -> None:
    """Every 11th of them by default, which has each piece with each other."""
    server, answers = SERVERS[name], list[bytes]()
    engine = engine_over(answers)
    whole = 0
    for pieces in islice(ways(server), 0, None, nth):
        made = read(engine, answers, pieces)
        silent = pieces.ends is None and pieces.before is None and pieces.done
        if pieces.ends not in ENDS and not silent:
            assert made is None, pieces
            continue
        assert made is not None and made.upstream is not None, pieces
        whole += 1
        ended = ENDS.get(pieces.ends)
        assert made.upstream.finish_reason == ended, pieces
        assert made.finish_reason == ("length" if ended == "length" else "eos")
        assert made.counted == bool(pieces.usage)
        assert engine.tokenizer.decode(made.ids) == ("one two" if pieces.content else "")
        assert len(made.ids) == 20 or not pieces.usage
        fields = made.upstream.fields
        thinking = {"parts": "reasoning_content"}.get(pieces.thoughts or "", pieces.thoughts)
        assert {n: v for n, v in fields.items() if n != "tool_calls"} == (
            {thinking: "let me"} if thinking else {}
        )
        calls = fields.get("tool_calls", [])
        assert [json.loads(each["function"]["arguments"]) for each in calls] == [{"a": 1}] * (
            {None: 0, "parts": 1, "one": 1}.get(pieces.calls, 2)
        ), pieces
        assert "let me" not in made.text
    assert whole > 20


def test_no_reason_means_two_things() -> None:
    assert set(ENDS) == {reason for server in SERVERS.values() for reason in server.ends}
    assert set(THINKING) == {name for server in SERVERS.values() for name in server.thoughts}
    assert set(STOPPED_BY) == {s.stopped_by for s in SERVERS.values()} - {None}
    for name, server in SERVERS.items():
        for reason, end in server.ends.items():
            assert ENDS[reason] == end and end in REASONS, name
        assert not set(server.breaks) & set(ENDS), name


class Heard(Streamed):
    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def put_fields(self, ids: list[int], fields: dict[str, Any]) -> None:
        self.fields.append(fields)


def test_a_reason_of_no_answer_after_something_was_shown() -> None:
    answers: list[bytes] = []
    engine = engine_over(answers)
    answers.append(Pieces("reasoning", "text", "ids", "own", None, "abort", True).sent())
    heard = Heard()
    with pytest.raises(UpstreamBroke, match="ended its answer with 'abort', in the middle"):
        engine.decode("a", HELLO, Request(), streamer=heard)
    assert heard.fields[:2] == [{"reasoning": "let "}, {"reasoning": "me"}]
    numbers = [each["tool_calls"][0]["index"] for each in heard.fields[2:]]
    assert numbers == [0, 0, 0, 1, 1, 1]


def test_a_part_that_is_not_read_is_no_answer() -> None:
    answers = [b'data: {"choices": [{"delta": {"content": [{"type": "image_url"}]}}]}\n\n' + DONE]
    with pytest.raises(ArmDown, match="no event"):
        engine_over(answers).decode("a", HELLO, Request())


def test_a_stop_string_that_sglang_names() -> None:
    choice = {"delta": {"content": "Hi"}, "finish_reason": "stop", "matched_stop": "END"}
    answers = [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" + DONE]
    assert engine_over(answers).decode("a", HELLO, Request(stop=("END",))).finish_reason == "stop"


def engine_of(server: FakeEndpoint) -> EndpointEngine:
    return EndpointEngine({"a": recipe(name="a", kind="endpoint", url=server.url, model="m")})


def test_a_server_that_refuses_stream_options_is_asked_without(server: FakeEndpoint) -> None:
    server.refuses = ("stream_options",)
    engine = engine_of(server)
    for _ in range(3):
        assert engine.decode("a", HELLO, Request()).text == "HELLO"
    assert ["stream_options" in body for body in server.asked] == [True, False, False, False]
    server.refuses = ("stream_options", "max_tokens")
    with pytest.raises(DraftpickError, match="unsupported: max_tokens"):
        engine.decode("a", HELLO, Request())


def test_one_connection_is_enough_for_answers_one_after_the_other(server: FakeEndpoint) -> None:
    engine = engine_of(server)
    for _ in range(20):
        assert engine.decode("a", HELLO, Request()).text == "HELLO"
    assert server.connections == 1


def test_words_go_with_their_answer(server: FakeEndpoint) -> None:
    engine, number = engine_of(server), iter(range(10**9))
    server.words = lambda prompt: [f" word{next(number)}" for _ in range(100)]
    kept = engine.decode("a", HELLO, Request())
    for _ in range(50):
        engine.decode("a", HELLO, Request())
    gc.collect()
    assert engine.tokenizer.decode(kept.ids) == kept.text.strip("\n") != ""
    assert len(engine.tokenizer._answers) == 1


# -- events ---------------------------------------------------------------------------------------

STREAM = (
    ": a comment\r\n\r\nevent: x\rid: 7\rdata: one\r\rdata:two\ndata:  three\n\n\ndata\n\n"
    "data: a\u2028b\x0bc\x85d\r\n\r\ndata: last\r\r"
)
DATA = ["one", "two\n three", "", "a\u2028b\x0bc\x85d", "last"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_however_they_come(size: int) -> None:
    parts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [*data_of(parts)] == DATA


@pytest.mark.parametrize("cut", ["data: x", "data: x\n", "data: x\r", "data: x\n: then"])
def test_an_event_that_is_not_ended_is_none(cut: str) -> None:
    assert [*data_of(["data: whole\n\n", cut])] == ["whole"]
