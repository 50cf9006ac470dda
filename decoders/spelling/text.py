"""Token ids to text while they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from .channels import Channels
from .stops import StopStrings
from .tokens import spelling_of

DECODER = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """An answer's text, piece by piece; the pieces together are the text before the stop string
    that is complete first. Special tokens have no text, and bytes that are no character are U+FFFD.
    Of an answer in channels it is the text of those that are for the user (channels.py).

    after: tokens whose text the answer's goes on; without them a tokenizer may leave out the space
        of its first word.
    whole: whether it is the text of all channels.
    ended: whether a stop string is whole.
    thought: text of the other channels; whoever tells it may empty it.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        whole: bool = False,
    ) -> None:
        self._spelling = spelling_of(tokenizer)
        self._ids = list(after)
        self._bytes = DECODER("replace")
        self._stops = StopStrings(stop, self._spelling.names.values() if stop else ())
        self._channels = None if whole else Channels.of(self._spelling.names.values())
        self.thought = ""
        self._held = ""  # not yet sure
        self._sent = 0  # characters before that
        self.ended = False

    def add(self, ids: Iterable[int]) -> str:
        """What is sure after some more tokens. What may yet turn out to be the beginning of a stop
        string, or lacks bytes, is held back until `finish`."""
        for token in ids:
            self.spell(token)
        return self._release(0 if self.ended else self._stops.begun)

    def spell(self, token: int) -> str:
        """Add one token and return what it adds to the text, sure or not."""
        text = self._bytes.decode(self._spelling.spelled(token, self._ids))
        self._ids.append(token)
        name = self._spelling.names.get(token, "")
        if self._channels is not None:
            text, thought = self._channels.apart(name, text)
            self.thought += thought
        self._hold(text, name)
        return text

    def finish(self) -> str:
        """What was held back, the answer being whole."""
        held = "" if self._channels is None else self._channels.rest()
        self._hold(held + self._bytes.decode(b"", final=True))
        return self._release(0)

    def _hold(self, text: str, name: str = "") -> None:
        if self.ended:
            return
        self._held += text
        begins = self._stops.add(text)
        if begins is None:
            begins = self._stops.add_special(name)
        if begins is not None:
            self.ended, self._held = True, self._held[: begins - self._sent]

    def _release(self, held: int) -> str:
        cut = len(self._held) - held
        sure, self._held = self._held[:cut], self._held[cut:]
        self._sent += len(sure)
        return sure


def text_of(tokenizer: Any, ids: Iterable[int]) -> str:
    """The text of tokens."""
    stream = TextStream(tokenizer)
    return stream.add(ids) + stream.finish()
