"""A file of prompts: JSON lines with a prompt, messages, or a query's turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collect.lines import json_lines, reading
from decoders.common.errors import DraftpickError
from decoders.common.text import from_json
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
    return [_prompt(data, where) for where, data in json_lines(path)]


def schema_in(path: Path) -> Grammar:
    """What an answer must be, by a file with a JSON schema. Raises DraftpickError naming it for
    anything else; whether the schema compiles shows when a target is loaded."""
    try:
        with reading(path, check="check --json-schema"):
            schema = from_json(path.read_text(encoding="utf-8-sig"))
        if isinstance(schema, dict):
            return Grammar.json_schema(schema)
        reason = "no object"
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
    raise DraftpickError(f"{path}: not a JSON schema ({reason})")


def _prompt(data: Any, where: str) -> Prompt:
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
        if messages[-1]["role"] != "user":
            raise DraftpickError(f"{where}: the last of the messages must be of the role user")
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
