"""Which deployment holds the beginning of a conversation: the one that answered its last turn, and
keeps what it read. Another one would read it all."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

LEAST = 2048  # bytes of the earlier turns, about 500 tokens of English
MOST = 10_000  # conversations


class Conversations:
    """May be used from several threads.

    least: bytes that the earlier turns have, for a conversation to stay; below it another
        deployment reads them in a moment. None lets none stay.
    most: conversations that are remembered, the latest.
    """

    def __init__(self, least: int | None = LEAST, most: int = MOST) -> None:
        self.least = least
        self._most = most
        self._lock = Lock()
        self._arms = OrderedDict[bytes, str]()

    def answered(self, messages: Sequence[dict[str, Any]], arm: str) -> None:
        """The arm answered this chat."""
        with self._lock:
            key = _key(_bytes(messages))
            self._arms[key] = arm
            self._arms.move_to_end(key)
            if len(self._arms) > self._most:
                self._arms.popitem(last=False)

    def arm_of(self, messages: Sequence[dict[str, Any]]) -> str | None:
        """The arm that gave the last answer in this chat, where it is known and the chat up to
        there long enough."""
        answers = [at for at, each in enumerate(messages) if each.get("role") == "assistant"]
        if self.least is None or not answers:
            return None
        at = answers[-1]
        asked = _bytes(messages[:at])
        if len(asked) + len(_bytes(messages[at : at + 1])) < self.least:
            return None
        with self._lock:
            return self._arms.get(_key(asked))


def _bytes(messages: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(list(messages), sort_keys=True).encode()


def _key(asked: bytes) -> bytes:
    return hashlib.sha256(asked).digest()
