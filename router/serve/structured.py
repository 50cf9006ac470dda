"""What an answer must be, by the fields of a request: OpenAI's `response_format`, `tools` and
`tool_choice`, and vLLM's names for the same."""

from __future__ import annotations

import json
from typing import Any, Literal

from decoders.records import Grammar

from .errors import ApiError
from .schemas import ChatBody, CommonFields, StructuredOutputs
from .tools import CallForm, CallReader, FencedCalls, form_of

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def grammar_of(body: CommonFields, template: Any) -> tuple[Grammar | None, str | None]:
    """What an answer must be, None for any text, and the field that says so. Raises ApiError.

    template: the target's chat template.
    """
    try:
        asked = _constraints(body)
    except RecursionError as error:
        raise ApiError(400, "the schema is nested too deeply; flatten it") from error
    if len(asked) > 1:
        words = f"{' and '.join(asked)} both say what the answer must be; give one of them"
        raise ApiError(400, words, next(iter(asked)))
    place, grammar = next(iter(asked.items()), (None, None))
    form = call_form(body, template)
    if form is None:
        return grammar, place
    assert isinstance(body, ChatBody)
    if place not in (None, "response_format"):
        words = f"{place} and tools both say what the answer must be; give one of them"
        raise ApiError(400, words, place)
    other: dict[str, Any] | Literal["text"] | None = None
    if not body.must_call:
        other = "text" if grammar is None else json.loads(grammar.source)
    if isinstance(other, dict) and not form.begin:
        words = (
            "the target writes calls as bare JSON, for which other JSON could be taken; leave "
            "response_format or tools out, or set tool_choice to required"
        )
        raise ApiError(400, words, place)
    named = body.called_tool
    tools = [tool for tool in body.offered if named in (None, tool["name"])]
    several = body.parallel_tool_calls is not False and named is None
    return form.grammar(tools, several, other), "tools"


def call_form(body: CommonFields, template: Any) -> CallForm | None:
    """How an answer's calls are written; None where it may make none. Raises ApiError."""
    if not isinstance(body, ChatBody) or not body.offered:
        return None
    form = form_of(template)
    if form is None:
        words = (
            "the target's chat template has no tools, or writes their calls in a form that is not "
            "known here (Hermes' and Llama 3's are); leave tools out, use another target, or give "
            "it a template by --chat-template"
        )
        raise ApiError(400, words, "tools")
    return form


def call_reader(body: CommonFields, template: Any) -> CallReader | None:
    """Reads an answer's calls; None where it may make none. Raises ApiError."""
    form = call_form(body, template)
    if form is None:
        return None
    assert isinstance(body, ChatBody)
    if not form.begin or body.must_call or _constraints(body):
        return CallReader(form)  # a grammar holds the whole answer
    names = [tool["name"] for tool in body.offered]
    return CallReader(form, FencedCalls(names, form.key, body.parallel_tool_calls is not False))


def _constraints(body: CommonFields) -> dict[str, Grammar]:
    """Constraints by the field that asks for each."""
    asked = dict[str, Grammar]()
    wanted = body.response_format if isinstance(body, ChatBody) else None
    if wanted is not None and wanted.json_schema is not None:
        asked["response_format"] = Grammar.json_schema(wanted.json_schema.schema_)
    elif wanted is not None and wanted.type == "json_object":
        asked["response_format"] = Grammar.json_schema(ANY_OBJECT)
    if body.structured_outputs is not None:
        asked["structured_outputs"] = _grammar(body.structured_outputs)
    return asked


def _grammar(asked: StructuredOutputs) -> Grammar:
    """The grammar of the one that is given."""
    if asked.regex is not None:
        return Grammar("regex", asked.regex)
    if asked.choice is not None:
        return Grammar.choice(asked.choice)
    if asked.grammar is not None:
        return Grammar("grammar", asked.grammar)
    return Grammar.json_schema(ANY_OBJECT if asked.json_ is None else asked.json_)
