"""Requests of an audit: questions, and those where drafts have been seen to do harm, tool calls
after earlier ones and JSON by a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError

if TYPE_CHECKING:
    from collect.queries import Query

CHAT, TOOLS, JSON = "chat", "tools", "json"
TOP = 5  # likeliest tokens that are asked for at each place
# Fields that requests of an audit set themselves.
SET = ("temperature", "seed", "logprobs", "top_logprobs", "tools", "response_format")

CITIES = ("Lisbon", "Oslo", "Quito", "Kyoto", "Accra", "Hobart")


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How it is asked: options of the command."""

    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 96
    at_once: Annotated[int, typer.Option("--clients", min=1, help="Requests under way.")] = 4
    draws: Annotated[
        int, typer.Option(min=0, help="Sampled answers to each of 8 questions; 0: none.")
    ] = 12
    temperature: Annotated[float, typer.Option(help="Of the sampled answers.")] = 1.0
    texts: Annotated[
        bool, typer.Option("--texts", help="Compare texts alone, without log-probabilities.")
    ] = False
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the tests.")] = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < 10:
            raise DraftpickError(
                f"--temperature of sampled answers is above 0, not {self.temperature:g}"
            )
        if self.draws == 1:
            raise DraftpickError("--draws is 0 or at least 2: one answer says nothing of chance")


@dataclass(frozen=True)
class AuditRequest:
    """kind: one of those above.
    body: of a request, without what says how it is sampled.
    """

    kind: str
    name: str
    body: dict[str, Any]


def audit_requests(queries: Sequence[Query], limit: int) -> list[AuditRequest]:
    """At most `limit` questions, evenly taken, and a few with tools and a schema."""
    step = max(1.0, len(queries) / limit)
    taken = [queries[int(at * step)] for at in range(min(limit, len(queries)))]
    asked = [AuditRequest(CHAT, query.id, {"messages": [_user(query.turns[0])]}) for query in taken]
    asked += [AuditRequest(TOOLS, f"weather in {city}", _tool_body(city)) for city in CITIES]
    return asked + [AuditRequest(JSON, f"facts on {city}", _json_body(city)) for city in CITIES]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _tool_body(city: str) -> dict[str, Any]:
    """A call of the same tool came before, so that drafts have something to copy wrongly."""
    other = CITIES[(CITIES.index(city) + 1) % len(CITIES)]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {
            "name": "weather",
            "arguments": f'{{"city": "{other}", "days": 3, "units": "metric"}}',
        },
    }
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["metric", "imperial"]},
        },
        "required": ["city", "days", "units"],
    }
    return {
        "messages": [
            _user(f"What will the weather in {other} be like over the next three days?"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 12 degrees."},
            {"role": "assistant", "content": f"In {other} it will rain at about 12 degrees."},
            _user(f"And in {city} over the next five days?"),
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather forecast of a city.",
                    "parameters": parameters,
                },
            }
        ],
    }


def _json_body(city: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "country": {"type": "string"},
            "inhabitants": {"type": "integer"},
            "sights": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        },
        "required": ["city", "country", "inhabitants", "sights"],
        "additionalProperties": False,
    }
    return {
        "messages": [_user(f"Give facts on {city} as a JSON object.")],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "facts", "schema": schema, "strict": True},
        },
    }
