"""The answers that a server has given, to draft from: bounded in memory and age, and each user's
only for that user.

Users are kept apart by their alphabets: a token of one is another symbol than the same token of
another, so that no match reaches from one user's text into another's, whatever is looked for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass

from ..common.errors import DraftpickError
from .index import LAST, MAX_MATCH, SuffixIndex
from .votes import Draft, Wanted, draft

TOKENS = 2**18  # kept by default
USER_BITS = 32  # above them a symbol has its user's number


@dataclass(frozen=True)
class Kept:
    """One text. place: where it ends in the index. since: seconds, when it was added."""

    user: str
    place: int
    tokens: int
    since: float


class EarlierAnswers:
    """Used by one thread; figures may be read by others.

    tokens: kept at most; the oldest answers make room for new ones.
    age_s: after how many seconds an answer is forgotten, None for never.
    clock: seconds since whenever.

    added: answers so far.
    asked, found: how often a draft was asked for, and how often an earlier answer had a match.
    """

    def __init__(
        self,
        tokens: int = TOKENS,
        age_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if tokens < 1:
            raise DraftpickError(f"earlier answers need room for 1 token or more, not {tokens}")
        if age_s is not None and age_s <= 0:
            raise DraftpickError(f"earlier answers are kept for some time, not {age_s:g} s")
        self._most, self._age_s, self._clock = tokens, age_s, clock
        self.added = self.asked = self.found = 0
        self._clear()

    def _clear(self) -> None:
        self._index = SuffixIndex(2 ** max(10, (2 * self._most - 1).bit_length()))
        self._texts: deque[Kept] = deque()  # the oldest first
        self._users: dict[str, int] = {}
        self._counts: dict[str, int] = {}  # texts of each user
        self._next_user = self.tokens = 0

    def __len__(self) -> int:
        """Answers that are kept."""
        return len(self._texts)

    @property
    def users(self) -> int:
        """Users of whom an answer is kept."""
        return len(self._users)

    def add(self, user: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """An answer [n] of this user, with the end of its prompt [s], which says what it follows.
        Of one that is longer than all that may be kept, the end."""
        text = [*prompt[-MAX_MATCH:], *answer]
        text = text[-self._most :]
        if not text:
            return
        if self._index.end + len(text) >= LAST:  # its places are used up
            self._clear()
        self._make_room(len(text))
        symbols = self._symbols(self._number(user), text)
        self._index.begin()
        self._index.extend(symbols)
        self._texts.append(Kept(user, self._index.end, len(text), self._clock()))
        self._counts[user] = self._counts.get(user, 0) + 1
        self.tokens += len(text)
        self.added += 1

    def draft(
        self, user: str, tail: Sequence[int], wanted: Wanted, acceptance: Callable[[int], float]
    ) -> Draft:
        """Draft what followed the longest match of `tail` in this user's answers (as `draft`)."""
        self.asked += 1
        self._make_room(0)
        number = self._users.get(user)
        if number is None:
            return Draft()
        symbols = self._symbols(number, tail[-MAX_MATCH:])
        made = draft(self._index, symbols, wanted, acceptance)
        made.ids = [symbol & (2**USER_BITS - 1) for symbol in made.ids]
        self.found += bool(made.ids)
        return made

    def copy(self) -> EarlierAnswers:
        """Another that holds the same now."""
        other = copy(self)
        other._index, other._texts = deepcopy(self._index), self._texts.copy()
        other._users, other._counts = dict(self._users), dict(self._counts)
        return other

    def _number(self, user: str) -> int:
        if user not in self._users:
            self._users[user] = self._next_user
            self._next_user += 1
        return self._users[user]

    def _symbols(self, number: int, tokens: Sequence[int]) -> list[int]:
        above = number << USER_BITS
        return [above + token for token in tokens]

    def _make_room(self, tokens: int) -> None:
        """Forget answers that are too old, and the oldest where there are too many."""
        oldest = None if self._age_s is None else self._clock() - self._age_s
        while self._texts and (
            self.tokens + tokens > self._most
            or (oldest is not None and self._texts[0].since < oldest)
        ):
            gone = self._texts.popleft()
            self.tokens -= gone.tokens
            self._index.forget(gone.place)
            self._counts[gone.user] -= 1
            if not self._counts[gone.user]:
                del self._counts[gone.user], self._users[gone.user]
