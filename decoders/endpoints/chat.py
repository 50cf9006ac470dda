"""Token ids where no tokenizer is known: bytes of the chat going in, pieces of text coming out.

An endpoint takes messages and streams text, while everything else here speaks of token ids. So a
prompt's ids are the UTF-8 bytes of its messages as JSON, from which they can be read again, and an
answer's ids are numbers of its words, as many as the server counted tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Self
from weakref import WeakValueDictionary

from ..common.errors import DraftpickError
from ..common.text import from_json, require_whole

NOTHING = 0  # the id of no text, for tokens that the server counted and did not show
MOST_WORDS = 2**32  # of one answer
_WORDS = re.compile(r"\s*\S+|\s+")


def chat_ids(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Ids [S] of a chat, each a byte. Raises DraftpickError for half a character."""
    require_whole(list(messages), "the messages")
    return list(json.dumps(list(messages), ensure_ascii=False).encode("utf-8"))


def chat_of(ids: Sequence[int]) -> list[dict[str, Any]]:
    """The chat of such ids. Raises DraftpickError where they are none."""
    try:
        messages = from_json(bytes(ids).decode("utf-8"))
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not messages:
        raise DraftpickError(
            "an endpoint takes a chat, not token ids; give a prompt's text or its messages"
        )
    return messages


class Words:
    """One answer's words, from 1 on, each with the space before it. The same word has the same id
    in one answer, and other answers have other ids.

    first: less than the id of its first word.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._texts = [""]
        self._numbers: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Ids whose texts, put together, are the text."""
        return [self._id(word) for word in _WORDS.findall(text)]

    def text(self, number: int) -> str:
        return self._texts[number]

    def counted(self, ids: list[int], tokens: int | None) -> list[int]:
        """Ids of the same text, as many as the server counted; None if it did not report a count.

        Where it counted fewer, the last ids become one.
        """
        if tokens is None or tokens < 1:
            return ids
        if len(ids) <= tokens:
            return ids + [NOTHING] * (tokens - len(ids))
        rest = (self._texts[one - self._first] for one in ids[tokens - 1 :] if one != NOTHING)
        return [*ids[: tokens - 1], self._id("".join(rest))]

    def _id(self, word: str) -> int:
        if not word:
            return NOTHING
        number = self._numbers.setdefault(word, len(self._texts))
        if number == len(self._texts):
            self._texts.append(word)
        return self._first + number


class Pieces:
    """A tokenizer of what endpoints write. The words of an answer are kept for as long as somebody
    holds its `Words`, as its result does; then its ids have no text. Numbers hold for one process;
    may be used from several threads."""

    chat_template = None

    def __init__(self) -> None:
        self.names = dict[int, str]()
        self._answers = WeakValueDictionary[int, Words]()
        self._next = count(1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a copy would not know the words that come later."""
        return self

    def begin(self) -> Words:
        """Words of a new answer."""
        number = next(self._next)
        words = self._answers[number] = Words(number * MOST_WORDS)
        return words

    def decode(self, token_ids: Any, **_: Any) -> str:
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        return "".join(map(self._text, ids))

    def spelled(self, token: int, before: Sequence[int] = ()) -> bytes:
        """Bytes of a word, for `spelling.Spells`. None is kept: words go with their answer."""
        return self._text(token).encode()

    def _text(self, token: int) -> str:
        answer, number = divmod(token, MOST_WORDS)
        words = self._answers.get(answer)
        return "" if words is None else words.text(number)


def tokens_of(tokenizer: str, text: str) -> int:
    """How many tokens the text has. tokenizer: as for `tokenizer_of`."""
    return len(tokenizer_of(tokenizer).encode(text, add_special_tokens=False))


@lru_cache
def tokenizer_of(name: str) -> Any:
    """name: of a folder or model. Raises DraftpickError where it cannot be loaded."""
    from ..models.targets import load_tokenizer, resolve

    folder = Path(name).expanduser()
    return load_tokenizer(folder if folder.is_dir() else resolve(name))


MIN_TURN_BYTES = 2048  # bytes of the earlier turns, about 500 tokens of English
MAX_CONVERSATIONS = 10_000  # conversations


class Conversations:
    """May be used from several threads.

    least: bytes that the earlier turns have, for a conversation to stay; below it another
        deployment reads them in a moment. None lets none stay.
    most: conversations that are remembered, the latest.
    """

    def __init__(self, least: int | None = MIN_TURN_BYTES, most: int = MAX_CONVERSATIONS) -> None:
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
