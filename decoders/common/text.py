"""Texts as tokenizers and files take them."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import DraftpickError

_HALF = re.compile("[\ud800-\udfff]")
_NUMBERS_ALONE = json.JSONDecoder(parse_constant=lambda _: None)


def from_json(content: str | bytes) -> Any:
    """`json.loads`, to which what is nested too deeply is no JSON either. Raises ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole(text: str) -> bool:
    """Whether the text has whole characters alone. JSON may spell half of one, and a command line's
    bytes that are no text come as such halves; no tokenizer and no file takes them."""
    return _HALF.search(text) is None


def to_json(record: object) -> str:
    """`json.dumps` that every reader of JSON takes. Raises ValueError for half a character and for
    NaN and infinite numbers, TypeError and RecursionError as it does."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    if not whole(text):
        raise ValueError("it holds half a surrogate pair")
    return text


def from_server(content: str) -> Any:
    """`from_json` of what is sent on: half a character is U+FFFD, NaN and infinite numbers null."""
    try:
        record = _NUMBERS_ALONE.decode(content)
        text = json.dumps(record, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return record if whole(text) else json.loads(_HALF.sub("\ufffd", text))


def require_whole(record: object, where: str) -> None:
    """Raises DraftpickError, naming where it stands, for JSON with half a character in a text."""
    if not whole(json.dumps(record, ensure_ascii=False)):
        raise DraftpickError(
            f"{where}: holds half a surrogate pair (\\ud800 to \\udfff); write whole characters"
        )
