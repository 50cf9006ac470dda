"""Tool calls: asked for, written in the template's form, and read by the official client."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from grammar_toys import HERMES as HERMES_TEMPLATE
from grammar_toys import LLAMA as LLAMA_TEMPLATE
from grammar_toys import toy_engine
from pydantic import BaseModel
from serve_toys import Served, served

from router.serve.app import Settings
from router.serve.parsing import Limits
from router.serve.tools import HERMES, LLAMA, CallForm, CallReader, form_of

ASKED: list[Any] = [{"role": "user", "content": "how warm is it in oslo?"}]


class Weather(BaseModel):
    city: Literal["rome", "oslo"]


class Clock(BaseModel):
    hour: Literal[1, 2]


TOOLS: list[Any] = [openai.pydantic_function_tool(each) for each in (Weather, Clock)]
REQUIRED: dict[str, Any] = {"model": "copy", "messages": ASKED, "tools": TOOLS} | {
    "tool_choice": "required"
}


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    with served(Settings(Limits(most_tokens=400)), engine=toy_engine()) as running:
        yield running


def parsed(call: Any) -> BaseModel:
    made = call.function.parsed_arguments
    assert isinstance(made, {"Weather": Weather, "Clock": Clock}[call.function.name])
    return made


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_the_official_client_parses_calls(toy: Served, choice: Any) -> None:
    for seed in range(4):
        made = toy.client().chat.completions.parse(
            **REQUIRED | {"tool_choice": choice, "temperature": 1, "seed": seed}
        )
        (told,) = made.choices
        assert told.finish_reason == "tool_calls" and told.message.content is None
        assert told.message.tool_calls
        assert all(map(parsed, told.message.tool_calls))
        assert len({call.id for call in told.message.tool_calls}) == len(told.message.tool_calls)


def test_a_stream_says_the_same(toy: Served) -> None:
    whole = toy.client().chat.completions.parse(**REQUIRED).choices[0]
    with toy.client().chat.completions.stream(**REQUIRED) as stream:
        kinds = [event.type for event in stream]
        made = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.done") == len(made.message.tool_calls or [])
    assert [call.function.arguments for call in made.message.tool_calls or []] == [
        call.function.arguments for call in whole.message.tool_calls or []
    ]
    assert all(map(parsed, made.message.tool_calls or []))
    assert made.finish_reason == "tool_calls"


def test_arguments_come_as_they_are_written(toy: Served) -> None:
    chunks = list(toy.client().chat.completions.create(**REQUIRED, stream=True))
    told = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert told[0].id and told[0].function.name and told[0].type == "function"
    assert len(told) >= 2 and all(each.id is None for each in told[1:])
    assert json.loads("".join(each.function.arguments for each in told if each.index == 0))


def test_one_function_may_be_named(toy: Served) -> None:
    named = {"type": "function", "function": {"name": "Clock"}}
    made = toy.client().chat.completions.parse(**REQUIRED | {"tool_choice": named})
    (call,) = made.choices[0].message.tool_calls or []
    assert isinstance(parsed(call), Clock)


def test_no_call_where_none_is_wanted(toy: Served) -> None:
    made = toy.client().chat.completions.create(**REQUIRED | {"tool_choice": "none"}, max_tokens=8)
    without = toy.client().chat.completions.create(model="copy", messages=ASKED, max_tokens=8)
    assert made.choices[0].message == without.choices[0].message
    assert made.usage == without.usage  # nor does the prompt name them


@pytest.mark.parametrize("stop", ["city", '"', "}"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_within_arguments_ends_no_call(toy: Served, stop: str, stream: bool) -> None:
    asked = REQUIRED | {"stop": [stop]}
    if stream:
        chunks = list(toy.client().chat.completions.create(**asked, stream=True))
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert toy.client().chat.completions.create(**asked).choices[0].finish_reason == "stop"
    whole = toy.client().chat.completions.create(**REQUIRED | {"stop": ["</tool_call>"]})
    assert whole.choices[0].finish_reason == "tool_calls"  # this one is


def test_one_call_at_most(toy: Served) -> None:
    for seed in range(4):
        named = {"parallel_tool_calls": False, "temperature": 1, "seed": seed}
        made = toy.client().chat.completions.create(**REQUIRED | named)
        assert len(made.choices[0].message.tool_calls or []) == 1


def test_a_loop_of_tools(toy: Served) -> None:
    """As agents run it: the answer goes back as it came, then what the tool gave."""
    client, messages = toy.client(), list(ASKED)
    for turn in range(2):
        made = client.chat.completions.parse(**REQUIRED | {"messages": messages})
        message = made.choices[0].message
        messages.append(message if turn else message.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "" if turn else "<|end|> 7"}
            for call in message.tool_calls or []
        ]
    used = client.chat.completions.create(**REQUIRED | {"messages": messages}).usage
    first = client.chat.completions.create(**REQUIRED).usage
    assert used and first and used.prompt_tokens > first.prompt_tokens + 40


def test_an_answer_may_be_json_or_a_call(toy: Served) -> None:
    made = toy.client().chat.completions.parse(
        **REQUIRED | {"tool_choice": "auto"}, response_format=Clock
    )
    assert made.choices[0].message.tool_calls or made.choices[0].message.parsed


def test_llama_s_form() -> None:
    with served(Settings(Limits(most_tokens=400)), engine=toy_engine(LLAMA_TEMPLATE)) as running:
        client = running.client()
        made = client.chat.completions.parse(**REQUIRED)
        (call,) = made.choices[0].message.tool_calls or []
        assert parsed(call) and made.choices[0].finish_reason == "tool_calls"
        with client.chat.completions.stream(**REQUIRED) as stream:
            (again,) = stream.get_final_completion().choices[0].message.tool_calls or []
        assert again.function.arguments == call.function.arguments
        free = client.chat.completions.create(**REQUIRED | {"tool_choice": "auto", "max_tokens": 8})
        assert free.choices[0].message.content or free.choices[0].message.tool_calls


def test_a_function_may_have_no_parameters(toy: Served) -> None:
    bare = BARE["function"]
    for function in (bare, bare | {"parameters": {}}, bare | {"parameters": None}):
        made = toy.client().chat.completions.create(
            **REQUIRED | {"tools": [BARE | {"function": function}], "temperature": 1, "seed": 2}
        )
        (call,) = made.choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("now", "{}")


BARE: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
EMPTY = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": [BARE | {"function": {"name": "now", "parameters": {"type": "string"}}}]},
         "tools.0.function", "parameters of type object"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "required"),
        ({"tools": [{"type": "function", "function": {"name": "a b", "parameters": EMPTY}}]},
         "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters":
          EMPTY | {"properties": {"x": {"type": "obj"}}}}}]}, "tools", "does not compile"),
        ({"tools": TOOLS[:1] * 2}, None, "the same name"),
        ({"tool_choice": "required"}, None, "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, None,
         "Weather, Clock"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "must be none, auto"),
        ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs",
         "give one of them"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "["}}]}]},
         "messages.1.tool_calls.0.function.arguments", "JSON object"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]}, "messages.0",
         "tool_call_id is a tool's"),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content", "required"),
    ],
)  # fmt: skip
def test_bad_input(toy: Served, body: dict[str, Any], param: str | None, words: str) -> None:
    with toy.http() as http:
        made = http.post("/v1/chat/completions", json={"messages": ASKED} | body)
        error = made.json()["error"]
        assert (made.status_code, error["param"]) == (400, param), error
        assert words in error["message"]


def test_a_template_without_tools_says_so() -> None:
    with (
        served(engine=toy_engine("{{ messages[0].content }}")) as running,
        pytest.raises(openai.BadRequestError, match="has no tools"),
    ):
        running.client().chat.completions.create(**REQUIRED)


def test_forms_are_told_from_templates() -> None:
    assert form_of(HERMES_TEMPLATE) == HERMES and form_of(LLAMA_TEMPLATE) == LLAMA
    assert form_of({"default": "{{ x }}", "tool_use": HERMES_TEMPLATE}) == HERMES
    assert form_of("tools <tool_call><function=a>") is None and form_of(None) is None


WRITTEN = [
    (HERMES, 'hi\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{", "b": [{}]}}\n</tool_call>'
     '\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
     "hi\n", [("f", '{"a": "}\\"{", "b": [{}]}'), ("g", "{}")]),
    (HERMES, "a <tool and <tool_cal", "a <tool and <tool_cal", []),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a', None, [("f", '{"a')]),
    (HERMES, '<tool_call>\n{"na', "", []),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', None, [("f", '{"a": 1}')]),
    (LLAMA, 'so {"name": "f"', 'so {"name": "f"', []),
    (LLAMA, "", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), WRITTEN)
def test_text_is_read_whole_and_by_letters(
    form: CallForm, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    made = CallReader(form).whole(text)
    told = [(c["function"]["name"], c["function"]["arguments"]) for c in made.get("tool_calls", [])]
    assert (made["content"], told) == (content, calls)
    reader, said, pieces = CallReader(form), "", dict[int, list[Any]]()
    for part in [*map(reader.add, text), reader.finish()]:
        said += part.get("content", "")
        for call in part.get("tool_calls", []):
            pieces.setdefault(call["index"], []).append(call["function"])
    assert said == (content or "")
    assert [
        (each[0]["name"], "".join(piece["arguments"] for piece in each)) for each in pieces.values()
    ] == calls
