"""Calls that a model writes as JSON between backticks, or bare, where its template has tags around
them. Qwen2.5-Coder does so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

FENCE = "```"
FENCES = ("", FENCE, FENCE + "json")


class Call(NamedTuple):
    name: str
    arguments: str


class FencedCalls:
    """Takes such calls from the beginning of an answer's text, piece by piece.

    A call is one only if its object is {"name": NAME, KEY: {...}} with the name of a tool and
    nothing else. What may yet become one is held back, all other text passes through.

    names: of the tools.
    key: of the arguments.
    several: whether there may be more calls than one.
    """

    def __init__(self, names: Sequence[str], key: str, several: bool) -> None:
        self._names, self._key, self._several = names, key, several
        self._heads = [
            f'{fence}{{"name":{json.dumps(name)},"{key}":{{' for fence in FENCES for name in names
        ]
        self._held = ""
        self._over = False  # no more of them
        self._after_call = False  # spaces add nothing

    def add(self, text: str, last: bool = False) -> tuple[list[Call], str]:
        """What some more text adds: calls, then text. last: whether the answer is whole."""
        self._held += text
        calls = list[Call]()
        while not self._over and self._may_become_one():
            read = self._object(last)
            if read is None and not last:
                return calls, ""
            if read is None or not self._is_call(read[0]):
                break
            found, self._held = read
            arguments = json.dumps(found[self._key], ensure_ascii=False)
            calls.append(Call(found["name"], arguments))
            self._after_call, self._over = True, not self._several
        self._over = True
        text, self._held = self._held, ""
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        return calls, text

    def _may_become_one(self) -> bool:
        packed = "".join(self._held.split())
        return any(head.startswith(packed) or packed.startswith(head) for head in self._heads)

    def _object(self, last: bool) -> tuple[dict[str, Any], str] | None:
        """The object that the text begins with and what follows it; None while it is not whole."""
        at = max(0, self._held.find("{"))
        try:
            found, end = json.JSONDecoder().raw_decode(self._held, at)
        except json.JSONDecodeError:
            return None
        rest = self._held[end:].lstrip()
        if FENCE not in self._held[:at]:
            return found, rest
        if rest.startswith(FENCE):
            return found, rest.removeprefix(FENCE)
        if FENCE.startswith(rest):
            return (found, "") if last else None
        return {}, rest  # more than an object between the backticks

    def _is_call(self, found: dict[str, Any]) -> bool:
        return (
            found.keys() == {"name", self._key}
            and found["name"] in self._names
            and isinstance(found[self._key], dict)
        )
