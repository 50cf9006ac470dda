"""Lines that servers print, as far as they hold prompts and answers.

vLLM with `--enable-log-requests` and `--enable-log-outputs` (its prompts are shown from the level
DEBUG on in newer versions): a request and its answer share an id. llama.cpp's server prints bodies
with `-v`: a request's is followed by its answer's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from .json_lines import exchange, object_of
from .records import LoggedAnswer

_STAMP = re.compile(r"\b(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_TEXT = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_NUMBERS = r"(\[[\d, ]*\]|None)"
_RECEIVED = re.compile(r"Received request (\S+): (?:prompt: " + _TEXT + r", )?params: (.*)$")
_DETAILS = re.compile(
    r"Request (\S+) details: prompt: " + _TEXT + r", prompt_token_ids: " + _NUMBERS
)
_OLD_IDS = re.compile(r"prompt_token_ids: " + _NUMBERS)
_GENERATED = re.compile(
    r"Generated response (\S+?)( \(streaming \w+\))?: output: "
    + _TEXT
    + r"(?:, output_token_ids: "
    + _NUMBERS
    + r")?(?:, finish_reason: (\w+))?"
)
_PARAMETER = r"\b{}=([\d.e+-]+)"
_REQUEST = re.compile(r"\brequest:\s+(\{.*)$")
_RESPONSE = re.compile(r"\bresponse:\s*(\{.*)$")


@dataclass
class ServerLog:
    """Reads lines in their order."""

    _asked: dict[str, LoggedAnswer] = field(default_factory=dict)
    _body: dict[str, Any] | None = None  # of llama.cpp's last request

    def answers(self, line: str, where: str) -> Iterator[LoggedAnswer]:
        """Answers that the line completes."""
        if "Received request " in line or " details: prompt: " in line:
            self._vllm_request(line, where)
        elif "Generated response " in line:
            yield from self._vllm_answer(line)
        elif found := _REQUEST.search(line):
            self._body = object_of(found[1])
        elif (found := _RESPONSE.search(line)) and self._body is not None:
            body, self._body = self._body, None
            if (said := object_of(found[1])) is not None:
                yield from exchange(body, said, {}, where)

    def _vllm_request(self, line: str, where: str) -> None:
        received, details = _RECEIVED.search(line), _DETAILS.search(line)
        found = received or details
        if found is None:
            return
        held = self._asked.get(found[1], LoggedAnswer(where=where))
        prompt = _literal(found[2])
        if isinstance(prompt, str):
            held = replace(held, prompt=prompt)
        ids = details or _OLD_IDS.search(line)
        if ids is not None and isinstance(_literal(ids[ids.re.groups]), list):
            held = replace(held, prompt_ids=tuple(_literal(ids[ids.re.groups])) or None)
        if received is not None:
            limit = _parameter("max_tokens", received[3])
            held = replace(
                held,
                temperature=_parameter("temperature", received[3]),
                limit=None if not limit else int(limit),
                started=_time(line),
            )
        self._asked[found[1]] = held

    def _vllm_answer(self, line: str) -> Iterator[LoggedAnswer]:
        found = _GENERATED.search(line)
        if found is None or (found[2] or "").endswith("delta)"):
            return
        asked = self._asked.pop(found[1], None)
        text, ids = _literal(found[3]), _literal(found[4])
        if asked is None or (asked.prompt is None and asked.prompt_ids is None):
            return
        if not text and not ids:
            return
        yield replace(
            asked,
            answer={"role": "assistant", "content": text} if text else None,
            ids=tuple(ids) if ids else None,
            ended_by=found[5] if found[5] != "None" else None,
            ended=_time(line),
        )


def _literal(written: str | None) -> Any:
    """What Python's `repr` wrote."""
    try:
        return None if written is None else ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _parameter(name: str, written: str) -> float | None:
    found = re.search(_PARAMETER.format(name), written)
    try:
        return None if found is None else float(found[1])
    except ValueError:
        return None


def _time(line: str) -> float | None:
    """Seconds, of the line's date; vLLM writes no year, which only differences are taken of."""
    found = _STAMP.search(line)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 2000) for part in found.groups()[:6])
    try:
        at = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return at.timestamp() + float(f"0.{found[7] or 0}")
