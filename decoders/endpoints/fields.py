"""What a message holds besides its text (tool calls, a refusal): checked, and put together from a
stream's parts."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
_GROWING = ("arguments", "input", "refusal")  # whose parts make one text
_PART = 4  # letters of what a server writes, about a token's


def fields_of(message: Json) -> Json:
    """`tool_calls` and `refusal` of a message or of a part of one, where it has them; calls with
    the index that parts of them are told by. Raises TypeError for what are none."""
    found: Json = {}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise TypeError("tool_calls are no list")
        found["tool_calls"] = [_call(call, number) for number, call in enumerate(calls)]
    if refusal := message.get("refusal"):
        if not isinstance(refusal, str):
            raise TypeError("a refusal is no text")
        found["refusal"] = refusal
    return found


def _call(call: Any, number: int) -> Json:
    if not isinstance(call, dict) or not isinstance(call.get("function") or {}, dict):
        raise TypeError("a tool call is no object")
    index = call.get("index")
    if index is not None and (type(index) is not int or index < 0):
        raise TypeError("a tool call has no number")
    return {**call, "index": number if index is None else index}


class Joined:
    """Fields of one message, part by part."""

    def __init__(self) -> None:
        self._calls: dict[int, Json] = {}
        self._others: Json = {}

    def add(self, fields: Json) -> None:
        """What one event brought, as of `fields_of`."""
        for call in fields.get("tool_calls", ()):
            _join(self._calls.setdefault(call["index"], {}), call)
        _join(self._others, {k: v for k, v in fields.items() if k != "tool_calls"})

    def whole(self) -> Json:
        """The message's fields, calls in order and without their index."""
        calls = [
            {name: value for name, value in self._calls[index].items() if name != "index"}
            for index in sorted(self._calls)
        ]
        return ({"tool_calls": calls} if calls else {}) | self._others


def _join(held: Json, part: Json) -> None:
    for name, value in part.items():
        before = held.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif isinstance(before, str) and isinstance(value, str) and name in _GROWING:
            held[name] = before + value
        elif name not in held or value is not None:
            held[name] = dict(value) if isinstance(value, dict) else value


def shown(fields: Json) -> str:
    """A message's fields as text, a line for each call."""
    calls = [json.dumps(call, ensure_ascii=False) for call in fields.get("tool_calls", ())]
    return "\n".join([*filter(None, [fields.get("refusal")]), *calls])


def tokens_guessed(fields: Json) -> int:
    """About how many tokens what one event brought is, where the server counts none."""
    written = list(filter(None, [fields.get("refusal")]))
    for call in fields.get("tool_calls", ()):
        function = call.get("function") or {}
        written += [str(function[name]) for name in ("name", "arguments") if function.get(name)]
    return max(1, sum(map(len, written)) // _PART)
