"""A file of prompts: JSON lines with a prompt, messages, or a query's turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import require_whole
from decoders.records import Grammar

from ...routing.messages import Message


@dataclass(frozen=True)
class Prompt:
    """One line.

    history: messages that come first.
    turns: what the user says, one after another.
    """

    id: str | int | None
    history: tuple[Message, ...]
    turns: tuple[str, ...]


def read_prompts(path: Path) -> list[Prompt]:
    """Read a file; each line is a string, or an object with `prompt`, `messages` or `turns`.

    Raises DraftpickError naming file and line for anything else. A blank prompt is let through:
    it fails when its turn comes, and the others still run.
    """
    lines = _text_of(path, "--prompts").split("\n")
    prompts = [_prompt(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DraftpickError(f"{path}: the file is empty; it needs one JSON object a line")
    return prompts


def schema_in(path: Path) -> Grammar:
    """What an answer must be, by a file with a JSON schema. Raises DraftpickError naming it for
    anything else; whether the schema compiles shows when a target is loaded."""
    try:
        schema = json.loads(_text_of(path, "--json-schema"))
        if isinstance(schema, dict):
            return Grammar.json_schema(schema)
        reason = "no object"
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
    raise DraftpickError(f"{path}: not a JSON schema ({reason})")


def _text_of(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DraftpickError(f"{path}: no such file; check {option}") from None
    except UnicodeDecodeError:
        raise DraftpickError(f"{path}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise DraftpickError(f"{path}: cannot be read ({error.strerror})") from None


def _prompt(line: str, where: str) -> Prompt:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise DraftpickError(f"{where}: not JSON ({reason})") from None
    require_whole(data, where)
    if isinstance(data, str):
        return Prompt(None, (), (data,))
    if not isinstance(data, dict):
        raise DraftpickError(f"{where}: must be an object or a string")
    identity = data.get("id", data.get("question_id"))
    prompt, turns, messages = data.get("prompt"), data.get("turns"), data.get("messages")
    if isinstance(prompt, str):
        return Prompt(identity, (), (prompt,))
    if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
        return Prompt(identity, (), tuple(turns))
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return Prompt(identity, tuple(messages[:-1]), (messages[-1]["content"],))
    raise DraftpickError(
        f'{where}: needs "prompt" (a string), "turns" (strings) or "messages" '
        "(objects with role and content)"
    )


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )
