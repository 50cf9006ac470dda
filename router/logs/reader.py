"""Reading a log back: every line is a decision, or counted, or refused by its number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from collect.lines import reading
from decoders.common.errors import DraftpickError
from decoders.common.text import from_json

from .record import FORMAT, LoggedDecision
from .writer import log_files


@dataclass(frozen=True)
class DecisionRows:
    """What a log's folder holds.

    decisions: in the order of files and lines.
    broken: lines that a kill or a full disk cut short.
    """

    folder: Path
    decisions: list[LoggedDecision]
    broken: int


def read_log(folder: str | Path) -> DecisionRows:
    """All decisions of a log, or of one of its files.

    Raises DraftpickError, with file and line, for a line that is whole but no decision that can be
    judged: of another format, with a propensity of 0, with probabilities that do not sum to 1.
    """
    place = Path(folder)
    if not place.exists():
        raise DraftpickError(f"there is no log at {place}; name the folder that --log was given")
    files = [place] if place.is_file() else log_files(place)
    if not files:
        raise DraftpickError(
            f"{place} holds no decisions-*.jsonl; write some with `draftpick generate --prompts "
            f"FILE --explore 0.2 --log {place}`"
        )
    decisions: list[LoggedDecision] = []
    broken = 0
    for path in files:
        with reading(path), path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    found = from_json(line)
                except ValueError:
                    broken += 1
                    continue
                decisions.append(_decision(found, f"{path}:{number}"))
    return DecisionRows(place, decisions, broken)


def _decision(found: Any, where: str) -> LoggedDecision:
    if not isinstance(found, dict) or "format" not in found:
        raise DraftpickError(f"{where} is not a logged decision; name a folder that --log wrote")
    if found["format"] != FORMAT:
        raise DraftpickError(
            f"{where} has format {found['format']}, this version reads {FORMAT}; install the "
            "version that wrote it"
        )
    if found.get("propensity") == 0:
        raise DraftpickError(
            f"{where}: the arm was taken with propensity 0, which no estimator can weight; log its "
            "propensity, or delete the line"
        )
    try:
        return LoggedDecision.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        words = str(first["msg"]).removeprefix("Value error, ")
        raise DraftpickError(
            f"{where}{f', {field}' if field else ''}: {words}; fix or delete the line"
        ) from None
