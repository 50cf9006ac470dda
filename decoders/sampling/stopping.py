"""When an answer ends: an end-of-sequence token, a stop string, or enough tokens."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ..records import Request

if TYPE_CHECKING:
    from ..spelling import TextStream


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
        self._ids: list[int] = []
        self._text = self._fresh_text()
        self.reason = ""

    def fresh(self) -> Stopper:
        """Another with the same rules, nothing admitted yet."""
        other = copy.copy(self)
        other._ids, other._text, other.reason = [], self._fresh_text(), ""
        return other

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self._most - len(self._ids)

    def admit(self, tokens: list[int]) -> list[int]:
        """The leading part of `tokens` that belongs to the answer; sets `reason` where it ends."""
        for count, token in enumerate(tokens, 1):
            self._ids.append(token)
            self.reason = self._why(self._ids, self._text, [token])
            if self.reason:
                return tokens[:count]
        return tokens

    def ends(self, ids: list[int]) -> str:
        """The reason for which an answer of these tokens ends with the last of them, or ""."""
        return self._why(ids, self._fresh_text(), ids)

    def text(self) -> str:
        if self._tokenizer is None:
            return ""
        from ..spelling import text_of

        return text_of(self._tokenizer, self._ids)

    def _fresh_text(self) -> TextStream | None:
        if not self._stop:
            return None
        from ..spelling import TextStream

        return TextStream(self._tokenizer, self._stop)

    def _why(self, ids: list[int], text: TextStream | None, new: list[int]) -> str:
        """text: of the ids without the new ones."""
        if text is not None:
            text.add(new)
        if ids[-1] in self.eos:
            return "eos"
        if text is not None and text.ended:
            return "stop"
        return "length" if len(ids) == self._most else ""
