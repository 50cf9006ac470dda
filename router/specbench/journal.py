"""The run's folder: its settings, and one line a question that survives a kill at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.files import whole_lines, write_atomically
from decoders.common.identity import comparable
from decoders.common.text import from_json

from .records import Row

OF_SPEED = frozenset(("timed_by", "context"))  # settings that older runs do not say


class Journal:
    """`run.json` (settings) and `rows.jsonl` (one question a line) in a folder.

    Raises DraftpickError for a folder that a run with other settings filled. In the folder of a run
    that was killed, an unfinished last line is dropped and the next one takes its place.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.path = folder / "rows.jsonl"
        settings = json.loads(json.dumps(settings))
        known = folder / "run.json"
        if known.exists():
            differences = _differences(_read_object(known), settings)
            if differences:
                raise DraftpickError(
                    f"{folder} holds a run with other settings ({'; '.join(differences)}); "
                    "give another --out, or delete that folder to start again"
                )
        else:
            write_atomically(known, json.dumps(settings, indent=2) + "\n")
        self.rows = _parse(self.path, whole_lines(self.path)) if self.path.exists() else []

    def append(self, row: Row) -> None:
        """Add one finished question; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row.to_json(), ensure_ascii=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.rows.append(row)


def read_rows(folder: Path) -> list[Row]:
    """The rows of a run, for reports; raises DraftpickError where there are none."""
    path = folder / "rows.jsonl"
    if not path.exists():
        raise DraftpickError(f"{folder} holds no specbench run (rows.jsonl is missing)")
    content = path.read_bytes()
    return _parse(path, content[: content.rfind(b"\n") + 1])


def _parse(path: Path, content: bytes) -> list[Row]:
    rows = []
    for number, line in enumerate(content.decode("utf-8").split("\n")[:-1], 1):
        try:
            rows.append(Row.from_json(from_json(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise DraftpickError(
                f"{path}:{number} is not a row of this version ({error}); "
                "delete the folder and run again"
            ) from None
    return rows


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = from_json(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DraftpickError(f"{path} is damaged; delete the folder and run again")
    return found


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    unsaid = OF_SPEED - (before.keys() & now.keys())
    named = sorted((before.keys() | now.keys()) - unsaid)
    return [
        f"{name}: {_short(before.get(name))} there, {_short(now.get(name))} now"
        for name in named
        if comparable(before.get(name)) != comparable(now.get(name))
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
