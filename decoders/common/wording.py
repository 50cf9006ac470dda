"""What goes wrong in libraries, in words for people."""

from __future__ import annotations

import re

from .errors import DraftpickError
from .secrets import masked

SHOWN = 300  # letters of a library's complaint
_CLASS = re.compile(r"\(?\b(?:\w+\.)*\w+(?:Error|Exception)\b\)?:?\s*")
_SYSTEM = re.compile(r"\[Errno -?\d+\] ([^'\"()]+)")


def in_words(error: BaseException) -> str:
    """What an error says first, in one line without passwords and without the names of Python's
    classes; our own say sentences, which stay whole."""
    if isinstance(error, DraftpickError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    text = str(error).strip().partition("\n")[0]
    system = _SYSTEM.search(text)  # the cause that a chain of wrappers quotes last
    if system is not None:
        return system[1].strip(" :.")
    text = masked(_CLASS.sub("", text))[:SHOWN]
    if isinstance(error, KeyError):
        return f"{text} is missing"
    if isinstance(error, MemoryError) and not text:
        return "memory ran out"
    return text or _spelled(type(error).__name__)


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _spelled(name: str) -> str:
    """ReadTimeout -> read timeout, for an error that says nothing."""
    bare = re.sub(r"(?:Error|Exception)$", "", name) or name
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", bare).lower()
