"""Token ids to text while they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NEAR = 8  # tokens that say how the next one is spelled
UNFINISHED = "\ufffd"  # what a character that lacks bytes decodes to


class TextStream:
    """An answer's text, piece by piece; the pieces together are the text before the stop string
    that is complete first. Special tokens have no text.

    after: tokens whose text the answer's goes on; without them a tokenizer may leave out the space
        of its first word.
    add: returns what is sure after some more tokens. What may yet turn out to be the beginning of a
        stop string, or lacks bytes, is held back until `finish`.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), after: Sequence[int] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids = list(after[-NEAR:])
        # tokens decoded together with the next, and those already sent
        self._from, self._read = 0, len(self._ids)
        self._held = ""  # decoded, not yet final
        self._ended = False  # at a stop string

    def add(self, ids: Sequence[int]) -> str:
        for token in ids:
            self.spell(token)
        return self._release()

    def spell(self, token: int) -> str:
        """Add one token and return what it adds to the text, sure or not."""
        self._ids.append(token)
        before = self._decode(self._ids[self._from : self._read])
        now = self._decode(self._ids[self._from :])
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        self._from, self._read = self._read, len(self._ids)
        self._held += now[len(before) :]
        return now[len(before) :]

    def finish(self) -> str:
        """What was held back, the answer being whole."""
        before = self._decode(self._ids[self._from : self._read])
        self._held += self._decode(self._ids[self._from :])[len(before) :]
        self._read = len(self._ids)
        sure, self._held = self._release() + self._held, ""
        return sure

    def _release(self) -> str:
        if self._ended:
            self._held = ""
            return ""
        found = [(at + len(one), at) for one in self._stop if (at := self._held.find(one)) >= 0]
        if found:
            self._ended = True
            sure, self._held = self._held[: min(found)[1]], ""
            return sure
        keep = max((begun(self._held, one) for one in self._stop), default=0)
        cut = len(self._held) - keep
        sure, self._held = self._held[:cut], self._held[cut:]
        return sure

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""


def spelled(tokenizer: Any, before: Sequence[int], token: int) -> str:
    """What a token adds to the text of those before it, alone where that is not known: a
    tokenizer may leave out the space of a text's first word."""
    near = list(before[-NEAR:])
    held = str(tokenizer.decode(near)) if near else ""
    text = str(tokenizer.decode([*near, token]))
    return text[len(held) :] if text.startswith(held) else str(tokenizer.decode([token]))


def begun(text: str, stop: str) -> int:
    """How many of the last characters begin the stop string without ending it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
