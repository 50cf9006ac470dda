"""Tool calls: the form in which a model was trained to write them, and that form read again.

The form is the chat template's own. A grammar holds the answer to it, so that what is read here can
only be cut short, never malformed.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from decoders.records import Grammar

Json = dict[str, Any]


@dataclass(frozen=True)
class CallForm:
    """How calls stand in an answer: {"name": NAME, KEY: ARGUMENTS} inside some text.

    begin: the text that makes what follows a call; without one a call is the whole answer.
    before, after: the texts around the braces.
    key: of the arguments.
    between: two calls; None for one call at most.
    """

    begin: str
    before: str
    key: str
    after: str
    between: str | None

    def grammar(
        self, tools: Sequence[Json], several: bool, other: Json | Literal["text"] | None = None
    ) -> Grammar:
        """Grammar of answers that call some of these tools.

        tools: `function` objects of OpenAI's API.
        several: more calls than one may be made, where the form has several.
        other: as in `Grammar.calls`.
        """
        calls = [
            (
                f'{self.before}{{"name": "{tool["name"]}", "{self.key}": ',
                tool["parameters"],
                "}" + self.after,
            )
            for tool in tools
        ]
        return Grammar.calls(self.begin, calls, self.between if several else None, other)


HERMES = CallForm("<tool_call>", "\n", "arguments", "\n</tool_call>", "\n")  # and Qwen
LLAMA = CallForm("", "", "parameters", "", None)  # Llama 3's JSON


def form_of(template: Any) -> CallForm | None:
    """Form of a chat template, or of several by name; None where it has no tools, or another
    form."""
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str) or "tools" not in template or "<function=" in template:
        return None
    if "<tool_call>" in template:
        return HERMES
    return LLAMA if '"parameters": ' in template and "ipython" in template else None


def begun(text: str, word: str) -> int:
    """How many of the last characters begin the word without ending it."""
    for length in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0


class CallReader:
    """An answer's text, piece by piece, as the parts of OpenAI's message that it adds.

    fenced: reads calls in another form, in front of this one's.
    """

    def __init__(self, form: CallForm, fenced: FencedCalls | None = None) -> None:
        self._form, self._fenced = form, fenced
        self._head = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "' + form.key + '": ')
        self._begin = form.begin or '{"name": "'
        self._held = ""  # not yet read
        self._said = False  # some text that is no call
        self._calls = 0
        self._read: Callable[[], str | Json | None] = self._text
        self._depth, self._quoted, self._escaped = 0, False, False  # inside arguments

    @property
    def ended(self) -> bool:
        """Whether there are calls, all of them whole."""
        return self._calls > 0 and self._read not in (self._name, self._arguments)

    def add(self, text: str, last: bool = False) -> Json:
        """What some more text adds: `content`, `tool_calls`, both or nothing. last: as of
        `FencedCalls.add`."""
        said, calls = "", dict[int, Json]()
        if self._fenced is not None:
            found, text = self._fenced.add(text, last)
            calls = {call["index"]: call for call in (self._call(*each) for each in found)}
        self._held += text
        while True:
            read, before = self._read, self._held
            made = read()
            if isinstance(made, str):
                said += made
            elif made is not None:
                index = made["index"]
                if index in calls:
                    calls[index]["function"]["arguments"] += made["function"]["arguments"]
                else:
                    calls[index] = made
            if self._read == read and self._held == before:
                break
        self._said |= bool(said)
        return ({"content": said} if said else {}) | (
            {"tool_calls": list(calls.values())} if calls else {}
        )

    def finish(self) -> Json:
        """What was held back, the answer being whole."""
        made = self.add("", last=True)
        said, self._held = (self._held if self._read == self._text else ""), ""
        said = made.pop("content", "") + said
        return ({"content": said} if said else {}) | made

    def whole(self, text: str) -> Json:
        """An answer's `content` and `tool_calls`, None where there are none."""
        content, calls = "", list[Json]()
        for part in (self.add(text), self.finish()):
            content += part.get("content", "")
            calls += part.get("tool_calls", [])
        for call in calls:
            del call["index"]
        made: Json = {"content": None if calls and not content else content}
        return made | ({"tool_calls": calls} if calls else {})

    # -- each reads what it can of what is held

    def _text(self) -> str | None:
        if self._form.begin:
            at = self._held.find(self._begin)
            if at < 0:
                cut = len(self._held) - begun(self._held, self._begin)
                said, self._held = self._held[:cut], self._held[cut:]
                return said
            said, self._held = self._held[:at], self._held[at + len(self._begin) :]
            self._read = self._name
            return said
        if not self._said and self._begin.startswith(self._held[: len(self._begin)]):
            if len(self._held) >= len(self._begin):
                self._read = self._name
            return None
        said, self._held, self._said = self._held, "", True
        return said

    def _name(self) -> Json | None:
        found = self._head.match(self._held)
        if found is None:
            return None
        self._held = self._held[found.end() :]
        self._read, self._depth = self._arguments, 0
        return self._call(json.loads(found[1]))

    def _call(self, name: str, arguments: str = "") -> Json:
        """The next call, as far as it is read."""
        self._calls += 1
        return {
            "index": self._calls - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _arguments(self) -> Json | None:
        """Up to the brace that closes them."""
        taken = 0
        for letter in self._held:
            taken += 1
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = letter == "\\", letter != '"'
            elif letter == '"':
                self._quoted = True
            else:
                self._depth += (letter in "{[") - (letter in "}]")
                if self._depth == 0:
                    self._read = self._after
                    break
        if not taken:
            return None
        made, self._held = self._held[:taken], self._held[taken:]
        return {"index": self._calls - 1, "function": {"arguments": made}}

    def _after(self) -> None:
        at = self._held.find(self._begin) if self._form.begin else -1
        if at >= 0:
            self._held, self._read = self._held[at + len(self._begin) :], self._name


FENCE = "```"
FENCES = ("", FENCE, FENCE + "json")


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

    def add(self, text: str, last: bool = False) -> tuple[list[tuple[str, str]], str]:
        """What some more text adds: calls, each a name and arguments, then text. last: whether the
        answer is whole."""
        self._held += text
        calls = list[tuple[str, str]]()
        while not self._over and self._may_become_one():
            read = self._object(last)
            if read is None and not last:
                return calls, ""
            if read is None or not self._is_call(read[0]):
                break
            found, self._held = read
            calls.append((found["name"], json.dumps(found[self._key], ensure_ascii=False)))
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
