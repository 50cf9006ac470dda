"""Files of logs, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json

from .json_lines import answers_of
from .records import LoggedAnswer
from .server_logs import ServerLog

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
        for number, line in enumerate(_lines(path), 1):
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


def _lines(path: Path) -> Iterator[str]:
    """Lines that hold something. Raises DraftpickError."""
    try:
        with path.open(encoding="utf-8-sig", errors="strict") as stream:
            while line := stream.readline(MOST_LINE):
                if line.strip():
                    yield line.rstrip("\r\n")
    except FileNotFoundError:
        raise DraftpickError(f"{path}: no such file; check --from-logs") from None
    except UnicodeDecodeError:
        raise DraftpickError(f"{path}: not UTF-8 text; save the log as UTF-8") from None
    except OSError as error:
        raise DraftpickError(f"{path}: cannot be read ({error.strerror})") from None


def _nothing(named: list[Path], lines: int) -> str:
    if not lines:
        return f"{named[0]}: the log is empty"
    return (
        f"{', '.join(map(str, named))}: none of {lines:,} lines holds an answer with its prompt; "
        "name a log with texts, such as JSON lines with `request` and `response`"
    )
