"""Server-sent events, read as HTML's standard has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import IncrementalNewlineDecoder


def data_of(parts: Iterable[str]) -> Iterator[str]:
    """The data of each event of a stream that comes in parts. One that is not ended is none."""
    held: list[str] = []
    for line in _lines(parts):
        name, _, value = line.partition(":")
        if name == "data":
            held.append(value.removeprefix(" "))
        elif not line and held:
            yield "\n".join(held)
            held = []


def _lines(parts: Iterable[str]) -> Iterator[str]:
    r"""Lines end with \n, \r\n or \r alone; `str.splitlines` knows more ends."""
    newlines = IncrementalNewlineDecoder(None, translate=True)
    held: list[str] = []
    for part in parts:
        first, *more = newlines.decode(part).split("\n")
        held.append(first)
        for each in more:
            yield "".join(held)
            held = [each]
    if newlines.decode("", final=True):  # it came to the last \r
        yield "".join(held)
