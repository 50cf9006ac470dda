"""Answers in JSON, by a regular expression or a choice, by the official client and its helpers."""

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from grammar_toys import toy_engine
from pydantic import BaseModel, Field
from serve_toys import Served, ToyPolicy, served

from decoders.common.errors import StillCompiling
from decoders.models.grammars import Grammars
from decoders.records import Grammar
from router.serve.app import Settings
from router.serve.parsing import Limits

ASKED: list[Any] = [{"role": "user", "content": '{"city": "oslo", "tags": [3, 1]}'}]
CHAT = "/v1/chat/completions"


class Trip(BaseModel):
    city: Literal["rome", "oslo"]
    tags: list[Literal[1, 2, 3]] = Field(max_length=3)


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    limits = Limits(most_tokens=400)
    with served(Settings(limits), engine=toy_engine(None)) as running:
        yield running


def test_the_official_client_parses_what_it_asked_for(toy: Served) -> None:
    for named in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
        made = toy.client().chat.completions.parse(
            model="copy", messages=ASKED, response_format=Trip, **named
        )
        assert isinstance(made.choices[0].message.parsed, Trip)
        assert made.choices[0].finish_reason == "stop"
        plain = toy.client().chat.completions.parse(
            model="autoregressive", messages=ASKED, response_format=Trip, **named
        )
        assert plain.choices[0].message.content == made.choices[0].message.content


def test_a_stream_is_parsed_too(toy: Served) -> None:
    with toy.client().chat.completions.stream(
        model="copy", messages=ASKED, response_format=Trip
    ) as stream:
        kinds = {event.type for event in stream}
        made = stream.get_final_completion()
    assert isinstance(made.choices[0].message.parsed, Trip) and "content.delta" in kinds
    whole = toy.client().chat.completions.parse(model="copy", messages=ASKED, response_format=Trip)
    assert made.choices[0].message.content == whole.choices[0].message.content


SCHEMA = Trip.model_json_schema() | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("named", "fits"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, Trip.model_validate_json),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda text: set(text) <= {"a", "b"}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"].index),
        ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}}, lambda text: int(text[1:])),
        ({"structured_outputs": {"json_object": True}, "seed": 5}, None),
        ({"response_format": {"type": "json_object"}}, None),
    ],
)
def test_vllm_s_names(toy: Served, named: dict[str, Any], fits: Any) -> None:
    with toy.http() as http:
        for path, asked in ((CHAT, {"messages": ASKED}), ("/v1/completions", {"prompt": "ab"})):
            if "response_format" in named and path != CHAT:
                continue
            usual = {"temperature": 1, "seed": 1, "max_tokens": 100, "model": "auto"}
            made = http.post(path, json=asked | usual | named).json()["choices"][0]
            text = made["text"] if path != CHAT else made["message"]["content"]
            if fits is None:
                assert text.startswith("{")
            else:
                assert fits(text) is not False and made["finish_reason"] == "stop"


def test_logprobs_are_those_under_the_grammar(toy: Served) -> None:
    asked = {"structured_outputs": {"regex": "a[bc]"}}
    made = toy.client().chat.completions.create(
        model="auto", messages=ASKED, logprobs=True, top_logprobs=3, extra_body=asked
    )
    first, second = made.choices[0].logprobs.content[:2]
    assert first.logprob == 0.0  # nothing else may come
    assert sum(10 ** (top.logprob / 2.302585093) for top in second.top_logprobs) > 0.999


BAD_SCHEMA = {"name": "bad", "schema": {"type": "obj"}}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": BAD_SCHEMA}},
         "response_format", "does not compile: Invalid type"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "has a schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "should be"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
         "response_format",
         "give one of them"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "give one"),
        ({"structured_outputs": {}}, "structured_outputs", "give one"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json",
         "JSON schema or the text of one"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json", "dictionary"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": ["жук"]}}, "structured_outputs",
         "no token of the target"),
        ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "ignore_eos",
         "leave ignore_eos out"),
        ({"structured_outputs": {"choice": ["a"]}, "model": "beams"}, None, "follows no grammar"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_400_and_the_connection_kept(
    toy: Served, body: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    with toy.http() as http:
        made = http.post(CHAT, json={"messages": ASKED, "stream": stream} | body)
        error = made.json()["error"]
        assert (made.status_code, error["param"]) == (400, param), error
        assert words in error["message"] and "\n" not in error["message"]
        connection = made.extensions["network_stream"]
        again = http.post(CHAT, json={"messages": ASKED, "structured_outputs": {"choice": ["a"]}})
        assert again.json()["choices"][0]["message"]["content"] == "a"
        assert again.extensions["network_stream"] is connection


def test_a_new_grammar_may_have_to_wait_for_others(
    toy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: Grammars, grammar: Grammar) -> None:
        raise StillCompiling("other grammars are still being compiled; ask again in a moment")

    with toy.http() as http:
        known = {"messages": ASKED, "structured_outputs": {"choice": ["a"]}}
        assert http.post(CHAT, json=known).status_code == 200
        monkeypatch.setattr(Grammars, "_in_time", busy)
        made = http.post(CHAT, json={"messages": ASKED, "structured_outputs": {"regex": "a{7}"}})
        assert (made.status_code, made.json()["error"]["code"]) == (503, "still_compiling")
        assert made.headers["retry-after"]
        assert http.post(CHAT, json=known).status_code == 200


class Searching(ToyPolicy):
    """Wants the beams, which follow no grammar, draw nothing and give no log-probabilities."""

    arms = ("beams", "copy")

    def distribution(self, x: Any) -> Any:
        import numpy as np

        return np.array([[0.9, 0.1]])


def test_the_next_best_arm_answers_where_the_best_cannot() -> None:
    with served(engine=toy_engine(None), policy=Searching()) as running:
        create = running.client().chat.completions.with_raw_response.create
        free = create(model="auto", messages=ASKED, max_tokens=4)
        assert free.headers["x-draftpick-arm"] == "beams"
        bound = create(
            model="auto", messages=ASKED, extra_body={"structured_outputs": {"choice": ["ab"]}}
        )
        assert bound.headers["x-draftpick-arm"] == "copy"
        assert bound.parse().choices[0].message.content == "ab"
        for more in ({"temperature": 0.7}, {"logprobs": True}):
            other = create(model="auto", messages=ASKED, max_tokens=4, **more)
            assert other.headers["x-draftpick-arm"] == "copy"


def test_a_target_without_a_fast_tokenizer_says_so() -> None:
    with served() as running, pytest.raises(openai.BadRequestError, match="cannot read the"):
        running.client().chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "ab"}],
            response_format={"type": "json_object"},
        )  # fmt: skip
