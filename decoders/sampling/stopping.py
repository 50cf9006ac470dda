"""When an answer ends: an end-of-sequence token, a stop string, or enough tokens."""

from __future__ import annotations

import copy
from typing import Any

from ..records import Request


class Stopper:
    """Admits tokens one by one and drops what follows the one that ends the answer.

    tokenizer: needed for text and stop strings; None gives empty text. As in transformers, the
    answer ends with the token that completes a stop string, and keeps it.
    """

    def __init__(self, request: Request, eos_ids: tuple[int, ...], tokenizer: Any = None) -> None:
        if request.stop and tokenizer is None:
            raise ValueError("stop strings need a tokenizer")
        self.eos = frozenset(eos_ids if request.eos_ids is None else request.eos_ids)
        self._stop, self._most = request.stop, request.max_new_tokens
        self._tokenizer = tokenizer
        # a token holds a byte or more, so a stop string that ends now lies in that many last tokens
        self._tail = max((len(s.encode()) for s in request.stop), default=0) + 1
        self._ids: list[int] = []
        self.reason = ""

    def fresh(self) -> Stopper:
        """Another with the same rules, nothing admitted yet."""
        other = copy.copy(self)
        other._ids, other.reason = [], ""
        return other

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self._most - len(self._ids)

    def admit(self, tokens: list[int]) -> list[int]:
        """The leading part of `tokens` that belongs to the answer; sets `reason` where it ends."""
        for count, token in enumerate(tokens, 1):
            self._ids.append(token)
            self.reason = self.ends(self._ids)
            if self.reason:
                return tokens[:count]
        return tokens

    def ends(self, ids: list[int]) -> str:
        """The reason for which an answer of these tokens ends with the last of them, or ""."""
        if ids[-1] in self.eos:
            return "eos"
        if self._stop and self._stopped(ids):
            return "stop"
        return "length" if len(ids) == self._most else ""

    def _stopped(self, ids: list[int]) -> bool:
        tail = self._tokenizer.decode(ids[-self._tail :], skip_special_tokens=True)
        return any(s in tail for s in self._stop)

    def text(self) -> str:
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=True))
