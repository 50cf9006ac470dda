"""An answer as the audit reads it: its text, its calls, and what the server says of each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json


@dataclass(frozen=True)
class Place:
    """A token of an answer.

    token: as the server spells it; a part of a character by its bytes.
    logprob: nats.
    top: the likeliest tokens there with theirs, this one among them.
    """

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Said:
    """text: with what the model thought before it.
    calls: name and arguments of each, as texts.
    places: of each token; empty where the server says nothing of them.
    fingerprint: its server's `system_fingerprint`; "" for none.
    thought: what the text begins with that is no part of the answer.
    """

    text: str
    calls: tuple[tuple[str, str], ...]
    places: tuple[Place, ...]
    finish_reason: str
    fingerprint: str = ""
    thought: str = ""

    @property
    def shown(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.text, self.calls

    @property
    def silent(self) -> bool:
        """Whether the server says nothing of its tokens."""
        return not self.places and bool(self.text or self.calls)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens that the server spells, else the text's words."""
        if self.places:
            return tuple(place.token for place in self.places)
        return tuple(self.text.split())


def said_in(record: Mapping[str, Any], server: str) -> Said:
    """The answer of a response. Raises DraftpickError where it holds none."""
    try:
        choice = record["choices"][0]
        message = choice["message"]
        thought = str(message.get("reasoning_content") or message.get("reasoning") or "")
        calls = tuple(
            (str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        found = (choice.get("logprobs") or {}).get("content") or ()
        places = tuple(
            Place(
                _spelled(each),
                float(each["logprob"]),
                {_spelled(top): float(top["logprob"]) for top in each.get("top_logprobs") or ()}
                | {_spelled(each): float(each["logprob"])},
            )
            for each in found
        )
        text = thought + str(message.get("content") or "")
        ended, print_of = str(choice.get("finish_reason")), record.get("system_fingerprint")
        return Said(text, calls, places, ended, str(print_of or ""), thought)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise DraftpickError(f"{server} sent what is no answer of /chat/completions") from None


def _spelled(token: Mapping[str, Any]) -> str:
    """A token's text. Parts of characters are spelled alike, so that their bytes are shown, where
    the server tells them."""
    text, content = str(token["token"]), token.get("bytes")
    if "\ufffd" not in text or not content:
        return text
    return bytes(content).decode("utf-8", "backslashreplace")


def broken(said: Said, body: Mapping[str, Any]) -> bool:
    """Whether it ended by itself and is not what was asked for: calls whose arguments are no JSON
    object or are of no tool, or no JSON where a format asks for it."""
    if said.finish_reason == "length":
        return False
    if said.calls:
        names = {tool["function"]["name"] for tool in body.get("tools", ())}
        return any(name not in names or not _is_object(text) for name, text in said.calls)
    return "response_format" in body and not _is_object(said.text[len(said.thought) :])


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False
