"""Files of logs, line by line: records, and lines that servers print.

vLLM with `--enable-log-requests` and `--enable-log-outputs` (its prompts are shown from the level
DEBUG on in newer versions): a request and its answer share an id. llama.cpp's server prints bodies
with `-v`: a request's is followed by its answer's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json

from ..lines import reading
from .json_lines import answers_of, exchange, object_of
from .records import LoggedAnswer

MOST_LINE = 1 << 26  # characters of a line


@dataclass(frozen=True)
class Logs:
    """answers: in the order of the lines.
    lines: that held something. without: of them, those that hold no answer with its prompt.
    """

    answers: list[LoggedAnswer]
    lines: int
    without: int


def read_logs(paths: Iterable[Path]) -> Logs:
    """Every answer of these files; of a folder, of its .jsonl, .json and .log files.

    Raises DraftpickError for a file that cannot be read, and where no file holds an answer.
    """
    answers, lines, without = list[LoggedAnswer](), 0, 0
    named = [each for path in paths for each in _files(path)]
    for path in named:
        server = ServerLog()
        for number, line in _lines(path):
            where = f"{path}:{number}"
            found = list(_answers(line, where, server))
            lines += 1
            without += not found
            answers += found
    if not answers:
        raise DraftpickError(_nothing(named, lines))
    return Logs(answers, lines, without)


def _answers(line: str, where: str, server: ServerLog) -> Iterator[LoggedAnswer]:
    if line.lstrip().startswith("{"):
        try:
            record = from_json(line)
        except ValueError:
            return
        yield from answers_of(record, where)
    else:
        yield from server.answers(line, where)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix in (".jsonl", ".json", ".log"))
    if not found:
        raise DraftpickError(f"{path}: the folder holds no .jsonl, .json or .log file; name a log")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers. Raises DraftpickError."""
    with reading(path, "log"), path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE), ""), 1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def _nothing(named: list[Path], lines: int) -> str:
    if not lines:
        return f"{named[0]}: the log is empty"
    return (
        f"{', '.join(map(str, named))}: none of {lines:,} lines holds an answer with its prompt; "
        "name a log with texts, such as JSON lines with `request` and `response`"
    )


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
# Of these the first in a line says what the line is; a text may hold any of them.
_KIND = re.compile(
    r"(?P<asked>Received request |Request \S+ details: prompt: )|(?P<said>Generated response )"
    r"|\brequest:\s+(?P<request>\{.*)$|\bresponse:\s*(?P<response>\{.*)$"
)


@dataclass
class ServerLog:
    """Reads lines in their order."""

    _asked: dict[str, LoggedAnswer] = field(default_factory=dict)
    _body: dict[str, Any] | None = None  # of llama.cpp's last request

    def answers(self, line: str, where: str) -> Iterator[LoggedAnswer]:
        """Answers that the line completes."""
        found = _KIND.search(line)
        if found is None:
            return
        if found["asked"]:
            self._vllm_request(line, found.start(), where)
        elif found["said"]:
            yield from self._vllm_answer(line, found.start())
        elif found["request"]:
            self._body = object_of(found["request"])
        elif self._body is not None:
            body, self._body = self._body, None
            if (said := object_of(found["response"])) is not None:
                yield from exchange(body, said, {}, where)

    def _vllm_request(self, line: str, at: int, where: str) -> None:
        received, details = _RECEIVED.match(line, at), _DETAILS.match(line, at)
        found = received or details
        if found is None:
            return
        held = self._asked.get(found[1], LoggedAnswer(where=where))
        prompt = _literal(found[2])
        if isinstance(prompt, str):
            held = replace(held, prompt=prompt)
        ids = details or _OLD_IDS.search(line, found.start(3))
        if ids is not None and isinstance(_literal(ids[ids.re.groups]), list):
            held = replace(held, prompt_ids=tuple(_literal(ids[ids.re.groups])) or None)
        if received is not None:
            limit = _parameter("max_tokens", received[3])
            held = replace(
                held,
                temperature=_parameter("temperature", received[3]),
                limit=None if not limit else int(limit),
                started=_time(line[:at]),
            )
        self._asked[found[1]] = held

    def _vllm_answer(self, line: str, at: int) -> Iterator[LoggedAnswer]:
        found = _GENERATED.match(line, at)
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
            ended=_time(line[:at]),
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


def _time(head: str) -> float | None:
    """Seconds, of the date before a line's words; vLLM writes no year, which only differences are
    taken of."""
    found = _STAMP.search(head)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 2000) for part in found.groups()[:6])
    try:
        at = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return at.timestamp() + float(f"0.{found[7] or 0}")
