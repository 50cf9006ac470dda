"""Tokens as pieces of a text, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .text import DECODER
from .tokens import Spells


@dataclass(frozen=True)
class Piece:
    """What a token is shown as.

    text: its bytes', where those of a half character are U+FFFD; of a special token its name.
    content: what it adds to the text; None for a special token.
    """

    text: str
    content: bytes | None

    @classmethod
    def of(cls, spelling: Spells, token: int, before: Sequence[int]) -> Piece:
        """Piece that a token is behind others."""
        name = spelling.names.get(token)
        if name is not None:
            return cls(name, None)
        content = spelling.spelled(token, before)
        return cls(content.decode("utf-8", "replace"), content)


class Places:
    """Counts where each piece of a text begins: at the character that its first byte is of."""

    def __init__(self) -> None:
        self._bytes, self._whole = DECODER("replace"), 0

    def add(self, content: bytes) -> int:
        """The place of the next piece."""
        self._read(content[:1])
        at = self._whole - (content != b"" and self._bytes.getstate()[0] == b"")
        self._read(content[1:])
        return at

    def _read(self, content: bytes) -> None:
        self._whole += len(self._bytes.decode(content))
