"""Parts of a message besides its text (tool calls, a refusal, thoughts): checked, and put
together from a stream's parts."""

from __future__ import annotations

import json
from typing import Any

from .servers import THINKING

Json = dict[str, Any]
_GROWING = ("arguments", "input", "refusal", *THINKING)  # whose parts make one text
_PART = 4  # letters of what a server writes, about a token's


def fields_of(message: Json) -> Json:
    """`tool_calls` and `refusal` of a message or of a part of one, where it has them. Raises
    TypeError for what are none."""
    found: Json = {}
    if calls := message.get("tool_calls"):
        if isinstance(calls, dict):
            calls = [calls]
        if not isinstance(calls, list):
            raise TypeError("tool_calls are no list")
        found["tool_calls"] = [_call(call) for call in calls]
    if refusal := message.get("refusal"):
        if not isinstance(refusal, str):
            raise TypeError("a refusal is no text")
        found["refusal"] = refusal
    return found


def _call(given: Any) -> Json:
    """A call whose id and arguments are text, as clients expect them."""
    if not isinstance(given, dict) or not isinstance(given.get("function") or {}, dict):
        raise TypeError("a tool call is no object")
    call: Json = dict(given)
    index, named = call.get("index"), call.get("id")
    if index is not None and (type(index) is not int or index < 0):
        raise TypeError("a tool call has no number")
    if type(named) is int:
        call["id"] = str(named)
    function = call.get("function") or {}
    if isinstance(function.get("arguments"), dict):
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        call["function"] = {**function, "arguments": arguments}
    return call


def _is_object(arguments: Any) -> bool:
    """Whether they are the text of a whole JSON object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False


class Joined:
    """Fields of one message, part by part.

    A part belongs to the call that its server's index names, unless it has another id, or begins
    again, with a name, after arguments that are whole: servers give several calls one index, or
    none.
    """

    def __init__(self) -> None:
        self._calls: dict[int, Json] = {}
        self._at: dict[int | None, int] = {}  # the latest of a server's index; of none, of all
        self._others: Json = {}

    def add(self, fields: Json) -> Json:
        """Add what one event brought, as of `fields_of`. Returns it with each call's own number as
        its `index`."""
        calls = [self._numbered(call) for call in fields.get("tool_calls", ())]
        others = {k: v for k, v in fields.items() if k != "tool_calls"}
        _join(self._others, others)
        return ({"tool_calls": calls} if calls else {}) | others

    def _numbered(self, call: Json) -> Json:
        index = call.get("index")
        at = self._at.get(index)
        if at is not None and _is_another(self._calls[at], call):
            at = next((n for n, held in self._calls.items() if _has_its_id(held, call)), None)
        if at is None:
            after = max(self._calls, default=-1) + 1
            at = after if index is None or index in self._calls else int(index)
        self._at[index] = self._at[None] = at
        numbered = {**call, "index": at}
        _join(self._calls.setdefault(at, {}), numbered)
        return numbered

    def whole(self) -> Json:
        """The message's fields, calls in order and without their index."""
        calls = [
            {name: value for name, value in self._calls[index].items() if name != "index"}
            for index in sorted(self._calls)
        ]
        return ({"tool_calls": calls} if calls else {}) | self._others


def _is_another(held: Json, call: Json) -> bool:
    if call.get("id") and held.get("id"):
        return bool(call["id"] != held["id"])
    named = (call.get("function") or {}).get("name")
    return bool(named) and _is_object((held.get("function") or {}).get("arguments"))


def _has_its_id(held: Json, call: Json) -> bool:
    return bool(call.get("id")) and held.get("id") == call["id"]


def _join(held: Json, part: Json) -> None:
    for name, value in part.items():
        before = held.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif isinstance(before, str) and isinstance(value, str) and name in _GROWING:
            held[name] = before + value
        elif not held.get(name) or value:
            held[name] = dict(value) if isinstance(value, dict) else value


def shown(fields: Json) -> str:
    """A message's fields as text, a line for each call; thoughts are no part of the answer."""
    calls = [json.dumps(call, ensure_ascii=False) for call in fields.get("tool_calls", ())]
    return "\n".join([*filter(None, [fields.get("refusal")]), *calls])


def thought(fields: Json) -> str:
    """Find what the model thought, once where a server gives it under two names."""
    return next((fields[name] for name in THINKING if fields.get(name)), "")


def tokens_guessed(fields: Json) -> int:
    """About how many tokens what one event brought is, where the server counts none."""
    written = list(filter(None, [fields.get("refusal"), thought(fields)]))
    for call in fields.get("tool_calls", ()):
        function = call.get("function") or {}
        written += [str(function[name]) for name in ("name", "arguments") if function.get(name)]
    return max(1, sum(map(len, written)) // _PART)
