"""An index of where the last tokens of a text came before: chains of earlier places, as in zlib's
deflate.

A suffix tree finds the longest earlier match, too, but cannot let its oldest texts go. Here each
place is entered under its last 2, 4, 8 and 16 tokens, in front of the place that had the same
before (a hash table and a linked list in flat arrays). So a token costs a few steps whatever is
held, the oldest texts are forgotten by moving a floor, and memory is known beforehand: about 60
bytes a token. A match is found by the longest of the four that is known, and measured token by
token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

ANCHORS = (2, 4, 8, 16)  # tokens that a place is found by, ascending
MAX_MATCH = 64  # tokens of a match; longer ones count as this
MOST_PLACES = 16  # places that vote, the latest ones
MOST_STEPS = 64  # along a chain, those included that share its slot by chance
BREAK = -1  # between two texts; no token
LAST = 2**31 - 1  # place that the arrays can hold


class SuffixIndex:
    """Texts of tokens, any integers from 0 to 2**63.

    slots: of the hash tables, a power of two; about twice as many as tokens are held.
    """

    def __init__(self, slots: int = 2**14) -> None:
        self._mask = slots - 1
        self._tokens = array("q")
        self._links = [array("i") for _ in ANCHORS]  # the place before with the same slot
        self._heads = [array("i", [-1]) * (self._mask + 1) for _ in ANCHORS]  # the latest
        self._base = self._floor = 0  # the first place in the arrays; the first that counts
        self._start = 0  # where the last text begins

    @property
    def end(self) -> int:
        """The place after the last token. Places only grow."""
        return self._base + len(self._tokens)

    def __len__(self) -> int:
        """Tokens of the last text."""
        return self.end - self._start

    def begin(self) -> None:
        """Another text; no match reaches from one into another."""
        if self._tokens:
            self._tokens.append(BREAK)
            for links in self._links:
                links.append(-1)
        self._start = self.end

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the last text. Raises OverflowError where there are too many."""
        first, held = self.end, len(self)
        if first + len(tokens) > LAST:
            raise OverflowError(f"an index takes {LAST} tokens; begin another")
        line = [*self._tokens[len(self._tokens) - min(held, ANCHORS[-1]) :], *tokens]
        known, mask = len(line) - len(tokens), self._mask
        for anchor, links, heads in zip(ANCHORS, self._links, self._heads, strict=True):
            for number in range(len(tokens)):
                if held + number < anchor:
                    links.append(-1)
                    continue
                end = known + number
                slot = hash(tuple(line[end - anchor : end])) & mask
                links.append(heads[slot])
                heads[slot] = first + number
        self._tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Take tokens of the last text back, but the first `length`."""
        while len(self) > length:
            self._tokens.pop()
            for anchor, links, heads in zip(ANCHORS, self._links, self._heads, strict=True):
                before = links.pop()
                if len(self) >= anchor:
                    key = tuple(self._tokens[len(self._tokens) - anchor :])
                    heads[hash(key) & self._mask] = before

    def forget(self, before: int) -> None:
        """Let go what lies before a place, the start of a text."""
        self._floor = max(self._floor, before)
        dead = self._floor - self._base
        if dead > 1024 and 4 * dead > len(self._tokens):
            del self._tokens[:dead]
            for links in self._links:
                del links[:dead]
            self._base = self._floor

    def after(self, place: int, most: int, runs_on: bool = False) -> tuple[int, ...]:
        """At most so many tokens of its text from a place on.

        runs_on: where they reach the end of the last text, they go on into themselves, as a copy
            does that is written there.
        """
        at = place - self._base
        made = tuple(self._tokens[at : at + most])
        if BREAK in made:
            return made[: made.index(BREAK)]
        if runs_on and len(made) < most:
            return (made * -(-most // len(made)))[:most]
        return made

    def find(self, tail: Sequence[int], shortest: int = 2) -> tuple[int, list[int]]:
        """How long the longest known suffix of `tail` is, and the places that follow it, the latest
        first; (0, []) where none has `shortest` tokens, or nothing follows it."""
        wanted = array("q", tail[-MAX_MATCH:])
        for number in reversed(range(len(ANCHORS))):
            known = max(ANCHORS[number], shortest)
            places = self._places(number, wanted, known) if known <= len(wanted) else []
            if places:
                return self._longest(places, wanted, known)
            if ANCHORS[number] <= shortest:
                break
        return 0, []

    def _places(self, number: int, wanted: array[int], known: int) -> list[int]:
        """Places after the last `known` tokens of `wanted`, an anchor or more, the latest first."""
        links, tokens = self._links[number], self._tokens
        key, base = wanted[-known:], self._base
        place = self._heads[number][hash(tuple(key[-ANCHORS[number] :])) & self._mask]
        found: list[int] = []
        for _ in range(MOST_STEPS):
            if place - known < self._floor or len(found) == MOST_PLACES:
                break
            at = place - base
            if tokens[at - known : at] == key:
                found.append(place)
            place = links[at]
        return found

    def _longest(self, places: list[int], wanted: array[int], known: int) -> tuple[int, list[int]]:
        """The places that share most, among those that share the last `known` tokens."""
        reach = [self._reach(place, wanted, known) for place in places]
        most = max(reach)
        return most, [place for place, own in zip(places, reach, strict=True) if own == most]

    def _reach(self, place: int, wanted: array[int], known: int) -> int:
        """How many tokens before a place are the last of `wanted`."""
        at, tokens = place - self._base, self._tokens
        most = min(len(wanted), place - self._floor)
        if tokens[at - most : at] == wanted[len(wanted) - most :]:
            return most
        while known < most and tokens[at - known - 1] == wanted[-known - 1]:
            known += 1
        return known
