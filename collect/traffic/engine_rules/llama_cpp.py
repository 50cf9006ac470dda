"""llama.cpp's `--spec-type ngram-simple`, `ngram-map-k` and `ngram-mod`.

As its folder common/ of November 2026 has them, hashes and
what two n-grams share by them included. Its functions are shown the text without the newest token,
which counts as text one round later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .rule import Rule

Key = tuple[int, ...]


class Simple(Rule):
    """What followed the last earlier place of the last `size_n` tokens, `size_m` tokens; nothing
    where fewer than `size_n` follow."""

    def __init__(self, size_n: int, size_m: int) -> None:
        self._n, self._m = size_n, size_m

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._places = dict[Key, int]()  # the last one of each
        self._known = 1  # places before this one were entered; the first never is

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        self._text += new
        text, n = self._text, self._n
        size = len(text) - 1
        if k < 1 or size <= n + self._m + 1:
            return []
        for at in range(self._known, size - n):
            self._places[tuple(text[at : at + n])] = at
        self._known = max(self._known, size - n)
        found = self._places.get(tuple(text[-n:]))
        if found is None:
            return []
        most = min(self._m, size - (found + n))
        return text[found + n : found + n + most][:k] if most >= n else []


KEY_BITS = 18  # of the map's hashes
FACTOR = 2654435761


class MapKey(Rule):
    """What followed an earlier place of the last `size_n` tokens: as many tokens as were accepted
    the last time, `size_m` at first. Which place it is: one between the last draft and this one,
    the last such; else the first that a hash table got, which is shown places of the prompt from
    its end on. A key of which nothing was accepted drafts no more. (`min-hits` changes nothing.)

    A slot's map begins anew with each answer here.
    """

    def __init__(self, size_n: int, size_m: int) -> None:
        self._n, self._m = size_n, size_m

    def begin(self, prompt: Sequence[int]) -> None:
        self._text, self._prompt = list(prompt), len(prompt)
        self._table = dict[int, int]()
        self._known = 0  # the last place that was entered
        self._most = dict[Key, int]()  # tokens that were accepted of a key's last draft
        self._drafted: Key | None = None  # by which the last draft was made

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        if self._drafted is not None:
            self._most[self._drafted] = len(new) - 1
            self._drafted = None
        self._text += new
        text, n, m = self._text, self._n, self._m
        size = len(text) - 1
        if k < 1 or size < 2 * n + m:
            return []
        key = tuple(text[-n:])
        last = size - n - m - 1
        found = self._found(key, last)
        if found is None:
            return []
        made = text[found + n : found + n + min(m, self._most.get(key, m))][:k]
        self._drafted = key if made else None
        return made

    def _found(self, key: Key, last: int) -> int | None:
        """Places up to `last` are entered after they were looked at."""
        slot, n = _slot(key), self._n
        held = self._table.get(slot, 0)
        found = held if 0 < held < last and self._at(held) == key else None
        ends = [(self._prompt - n - self._m - 1, 0)] if self._prompt > n + self._m + 1 else []
        ends.append((last, self._prompt))
        known = self._known
        for end, least in ends:
            for at in range(end, max(least, known), -1):
                gram = self._at(at)
                if found is None and gram == key:
                    found = at
                self._table.setdefault(_slot(gram), at)
        self._known = max(known, last)
        return found

    def _at(self, place: int) -> Key:
        return tuple(self._text[place : place + self._n])


def _slot(gram: Key) -> int:
    made, mask = 0, (1 << KEY_BITS) - 1
    for token in gram:
        made = (made * FACTOR + token) & mask
    return made


SLOTS = 1 << 22
MULTIPLIER = 6364136223846793005 % SLOTS
LAG = 32  # tokens after which what was written is entered
FULL = 0.25  # share of the slots at which all are forgotten
LOW, LOW_IN_A_ROW = 0.25, 5  # shares accepted, and drafts, after which they are
EMPTY = -1


@dataclass
class Kept:
    """An answer's own entries. reset: all before them were forgotten. low: drafts in a row of
    which little was accepted."""

    entries: dict[int, int] = field(default_factory=dict)
    reset: bool = False
    low: int = 0


class Mod(Rule):
    """The token that last followed `n_match` tokens, by a hash, and so on from it: `n_max` tokens,
    or none where fewer than `n_min` are known. All slots share the table; an answer's own entries
    are seen by others once it is complete."""

    def __init__(self, n_match: int, n_min: int, n_max: int) -> None:
        self._n, self._min, self._max = n_match, n_min, n_max
        self._table: NDArray[np.int32] = np.full(SLOTS, EMPTY, dtype=np.int32)
        self._used = self._low = 0
        self._leaving = pow(MULTIPLIER, n_match, SLOTS)

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self._own = Kept(low=self._low)
        self._entered, self._drafted = 0, 0
        if len(prompt) < self._n:
            return
        self._enter(len(prompt))
        if self._share() > FULL:
            self._forget()

    def _enter(self, size: int) -> None:
        """What follows each n-gram of the first `size` tokens."""
        text, n, own = self._text, self._n, self._own.entries
        first, end = self._entered, size - n
        slot = self._slot(text[first : first + n])
        for at in range(first, end):
            own[slot] = text[at + n]
            slot = self._next(slot, text[at], text[at + n])
        self._entered = end

    def _slot(self, gram: Sequence[int]) -> int:
        made = 0
        for token in gram:
            made = (made * MULTIPLIER + token) % SLOTS
        return made

    def _next(self, slot: int, leaves: int, enters: int) -> int:
        return (slot * MULTIPLIER + enters - leaves * self._leaving) % SLOTS

    def _get(self, slot: int) -> int:
        own = self._own
        if slot in own.entries:
            return own.entries[slot]
        return EMPTY if own.reset else int(self._table[slot])

    def _share(self) -> float:
        own = self._own
        before = 0 if own.reset else self._used
        new = sum(1 for slot in own.entries if own.reset or self._table[slot] == EMPTY)
        return (before + new) / SLOTS

    def _forget(self) -> None:
        self._own.entries, self._own.reset = {}, True

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        self._judge(len(new) - 1)
        size = len(self._text) + len(new) - 1
        self._text += new
        text, n = self._text, self._n
        if k < 1 or size < n:
            return []
        if self._entered + LAG < size:
            self._enter(size)
        line = text[-n:]
        slot, made = self._slot(line), list[int]()
        while len(made) < self._max:
            token = self._get(slot)
            if token == EMPTY:
                break
            slot = self._next(slot, line[len(made)], token)
            made.append(token)
            line.append(token)
        if len(made) < min(self._min, self._max):
            made = []
        self._drafted = len(made)
        return made[:k]

    def _judge(self, accepted: int) -> None:
        """Count what came of the last draft."""
        drafted, self._drafted = self._drafted, 0
        if not drafted:
            return
        self._own.low = self._own.low + 1 if accepted / drafted < LOW else 0
        if self._own.low >= LOW_IN_A_ROW:
            self._forget()
            self._own.low = self._entered = 0

    def end(self, new: Sequence[int]) -> Kept:
        return self._own

    def remember(self, kept: Kept) -> None:
        if kept.reset:
            self._table.fill(EMPTY)
            self._used = 0
        self._low = kept.low
        if kept.entries:
            slots = np.fromiter(kept.entries, dtype=np.int64)
            self._used += int((self._table[slots] == EMPTY).sum())
            self._table[slots] = np.fromiter(kept.entries.values(), dtype=np.int32)
