"""Files that users name, read line by line; what is wrong is said by file and line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json, require_whole


@contextmanager
def reading(path: Path, named: str = "file", check: str = "check the path") -> Iterator[None]:
    """Says in one sentence why a file cannot be read, by DraftpickError.

    named: what it is. check: what to do where there is none.
    """
    try:
        yield
    except FileNotFoundError:
        raise DraftpickError(f"{path}: no such {named}; {check}") from None
    except UnicodeDecodeError:
        raise DraftpickError(f"{path}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise DraftpickError(f"{path}: cannot be read ({error.strerror})") from None


def json_lines(path: Path, named: str = "file") -> Iterator[tuple[str, Any]]:
    """("file:line", what it holds) of every line that is not blank, as JSON.

    Raises DraftpickError for a missing or empty file, and for the first line that is no JSON, no
    UTF-8, or holds half a character.
    """
    empty = True
    with reading(path, named), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{path}:{number}"
            try:
                text = line.decode("utf-8-sig")
                if not text.strip():
                    continue
                record = from_json(text)
            except UnicodeDecodeError:
                raise DraftpickError(f"{where}: not UTF-8 text; save the file as UTF-8") from None
            except ValueError as error:
                raise DraftpickError(
                    f"{where}: not JSON ({getattr(error, 'msg', error)}); each line must hold one "
                    "JSON object"
                ) from None
            require_whole(record, where)
            empty = False
            yield where, record
    if empty:
        raise DraftpickError(f"{path}: the {named} is empty; it needs one JSON object a line")
