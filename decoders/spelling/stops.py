"""Stop strings in a text that comes piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


class StopStrings:
    """Looks for stop strings, character by character.

    A special token has no text. A stop string that names one is met by its text and by the token
    itself; to one that does not, the token is nothing.

    names: of the special tokens.
    """

    def __init__(self, stop: Iterable[str], names: Iterable[str]) -> None:
        plain = list(dict.fromkeys(filter(None, stop)))
        named = sorted({name for name in names if name and any(name in one for one in plain)})
        longest_first = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
        self._signs = {name: chr(0xD800 + at) for at, name in enumerate(named)}  # no text has those
        signed = [
            re.sub(longest_first or "(?!)", lambda found: self._signs[found[0]], one)
            for one in plain
        ]
        self._patterns = [_Pattern(one, self._signs) for one in dict.fromkeys([*plain, *signed])]
        self._told = 0  # characters

    def add(self, text: str) -> int | None:
        """Read on, and return where the first stop string begins, counted from the first character
        of all, once one is whole."""
        for character in text if self._patterns else "":
            self._told += 1
            ended = self._met(character)
            if ended is not None:
                return ended
        return None

    def add_special(self, name: str) -> int | None:
        """Read a special token, likewise."""
        return self._met(self._signs[name]) if name in self._signs else None

    @property
    def begun(self) -> int:
        """How many of the last characters may turn out to begin a stop string."""
        return max((each.held for each in self._patterns), default=0)

    def _met(self, sign: str) -> int | None:
        met = [each.held for each in self._patterns if each.add(sign)]
        return self._told - max(met) if met else None


class _Pattern:
    """One string, found by the algorithm of Knuth, Morris and Pratt.

    held: characters of the text that match its beginning.
    """

    def __init__(self, text: str, signs: Mapping[str, str]) -> None:
        self._text = text
        self._deaf = frozenset(signs.values()) - set(text)  # to these tokens
        self._shorter = _borders(text)
        self._characters = [0]  # of the text among the first so many
        for sign in text:
            self._characters.append(self._characters[-1] + (sign not in signs.values()))
        self._at = 0

    @property
    def held(self) -> int:
        return self._characters[self._at]

    def add(self, sign: str) -> bool:
        """Read on, and return whether that completes it."""
        if sign in self._deaf:
            return False
        while self._at and self._text[self._at] != sign:
            self._at = self._shorter[self._at - 1]
        self._at += self._text[self._at] == sign
        return self._at == len(self._text)


def _borders(text: str) -> list[int]:
    """For each beginning of the text, how long the longest is that it ends with, besides itself."""
    found = [0] * len(text)
    for at in range(1, len(text)):
        length = found[at - 1]
        while length and text[length] != text[at]:
            length = found[length - 1]
        found[at] = length + (text[length] == text[at])
    return found
