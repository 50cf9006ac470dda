"""vLLM's n-grams and its suffix decoding, which is arctic-inference's.

As its folder vllm/v1/spec_decode of November 2026 has them, with arctic-inference 0.1.1. The suffix
trees are here texts with an index, since a node's count is how often its tokens came.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from decoders.methods.max_gram.copying import Matches

from .rule import Rule

DEPTH = 24  # tokens of a match and its draft
LEAST = np.float32(0.1)  # chance of a drafted token, by counts
Occurrences = list[tuple["Text", int]]  # where matches end


class Ngram(Rule):
    """What followed the first of the longest matches, of `shortest` to `longest` tokens, up to the
    end of the text."""

    def __init__(self, shortest: int, longest: int, most: int) -> None:
        self._matches, self._most = Matches(shortest, longest, earliest=True), most
        self._text, self._end = np.zeros(0, dtype=np.int64), 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._text, self._end = np.zeros(2 * len(prompt) + 64, dtype=np.int64), 0
        self._write(prompt)

    def _write(self, new: Sequence[int]) -> None:
        start, self._end = self._end, self._end + len(new)
        if self._end > len(self._text):
            self._text = np.concatenate([self._text, np.zeros(self._end, dtype=np.int64)])
        self._text[start : self._end] = new

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        self._write(new)
        text = self._text[: self._end]
        found = self._matches.find(text, text[-self._matches.longest :].tolist())
        if found is None:
            return []
        ids: list[int] = text[found[0] : found[0] + min(k, self._most)].tolist()
        return ids


class Text:
    """Tokens, with the places after each pair, and what followed each token."""

    def __init__(self) -> None:
        self.tokens = list[int]()
        self.pairs = dict[tuple[int, int], list[int]]()
        self.followed = dict[int, Followers]()

    def write(self, new: Iterable[int], begins: bool = False) -> None:
        """begins: another text begins, so that no match reaches back."""
        before = self.tokens[-1] if self.tokens and not begins else BREAK
        if begins and self.tokens:
            self.tokens.append(BREAK)
        for token in new:
            self.tokens.append(token)
            self.followed.setdefault(token, Followers()).came += 1
            if before != BREAK:
                self.followed[before].add(token)
                self.pairs.setdefault((before, token), []).append(len(self.tokens))
            before = token

    def after(self, place: int) -> int:
        return self.tokens[place] if place < len(self.tokens) else BREAK


BREAK = -1  # between two texts; no token


class Followers:
    """Tokens that followed something, in the order in which the tree of arctic-inference keeps a
    node's children: by falling count, and equal ones as they came to it.

    came: how often the something came, at the end of a text too.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.came = 0
        self._order = list[int]()
        self.counts = dict[int, int]()
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        order, counts = self._order, self.counts
        if token not in counts:
            counts[token] = 1
            order.append(token)
            return
        count = counts[token]
        at = order.index(token, self._first(count))
        before = counts[order[at - 1]] if at else count + 2
        if before <= count + 1:
            order.insert(self._first(before), order.pop(at))
        counts[token] = count + 1

    def _first(self, count: int) -> int:
        """The first place with no greater count."""
        return bisect_left(self._order, -count, key=lambda token: -self.counts[token])

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)


class Suffix(Rule):
    """What most often followed a match, in the request's own text or in all answers: of the matches
    of every length the one whose draft has the greatest sum of chances. A draft has no more tokens
    than its match."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._earlier = Text()  # answers that are complete
        self._text, self._answer = Text(), Text()

    def begin(self, prompt: Sequence[int]) -> None:
        self._text, self._answer = Text(), Text()
        self._text.write(prompt)

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        self._text.write(new)
        self._answer.write(new)
        tail, most = self._text.tokens[-DEPTH:], min(k, self._most)
        own, score = _best([self._text], tail, most)
        others, other_score = _best([self._earlier, self._answer], tail, most)
        return own if score >= other_score else others

    def end(self, new: Sequence[int]) -> list[int]:
        return self._answer.tokens + list(new)

    def read(self, prompt: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list(ids)

    def remember(self, kept: list[int]) -> None:
        self._earlier.write(kept, begins=True)


def _best(texts: Sequence[Text], tail: Sequence[int], most: int) -> tuple[list[int], np.float32]:
    """The draft with the greatest score of all lengths of a match, of equal ones the longest."""
    best, score = list[int](), np.float32(0)
    if len(tail) < 2 or most < 1:
        return best, score
    made, chance = _after_one(texts, tail[-1])
    if made:
        best, score = made, chance
    places: Occurrences = [
        (text, place) for text in texts for place in text.pairs.get((tail[-2], tail[-1]), ())
    ]
    for matched in range(2, len(tail)):
        if matched > 2:
            before = tail[-matched]
            places = [
                (text, place)
                for text, place in places
                if place >= matched and text.tokens[place - matched] == before
            ]
        if not places:
            break
        made, chance = _path(places, matched, min(most, matched))
        if chance >= score:
            best, score = made, chance
    return best, score


def _after_one(texts: Sequence[Text], token: int) -> tuple[list[int], np.float32]:
    """After a match of one token at most one is drafted."""
    known = [text.followed[token] for text in texts if token in text.followed]
    if not any(each.counts for each in known):
        return [], np.float32(0)
    came = sum(each.came for each in known)
    if len(known) == 1:
        first = next(iter(known[0]))
        count = known[0].counts[first]
    else:
        first, count = _first_of_both(texts, token, *known)
    chance = np.float32(count) / np.float32(came)
    return ([first], chance) if chance >= LEAST else ([], np.float32(0))


def _first_of_both(
    texts: Sequence[Text], token: int, one: Followers, other: Followers
) -> tuple[int, int]:
    """The first child of the two texts' common node. other: of the later and shorter text."""
    leading = next(iter(one), BREAK)
    able = {leading, *other.counts} - {BREAK}
    able |= {each for each in islice(one, 1, 8)}
    counts = {each: one.counts.get(each, 0) + other.counts.get(each, 0) for each in able}
    most = max(counts.values())
    first = [each for each, count in counts.items() if count == most]
    if len(first) == 1:
        return first[0], most
    whole = Followers(one_after_another(texts, token))
    leading = next(iter(whole))
    return leading, whole.counts[leading]


def one_after_another(texts: Sequence[Text], token: int) -> Iterator[int]:
    """What followed the token, in the order of the texts."""
    for text in texts:
        for at, each in enumerate(text.tokens[:-1]):
            if each == token and text.tokens[at + 1] != BREAK:
                yield text.tokens[at + 1]


def _path(places: Occurrences, matched: int, most: int) -> tuple[list[int], np.float32]:
    """The likeliest token and so on from it, with the sum of their chances."""
    made, chance, score = list[int](), np.float32(1), np.float32(0)
    while len(made) < most and matched + len(made) < DEPTH:
        after = [text.after(place) for text, place in places]
        if len(after) == 1:
            token, count = after[0], 1
        else:
            token, count = _most(after)
        if token == BREAK:
            break
        chance = np.float32(chance * (np.float32(count) / np.float32(len(places))))
        if chance < LEAST:
            break
        made.append(token)
        score = np.float32(score + chance)
        places = [
            (text, place + 1)
            for (text, place), each in zip(places, after, strict=True)
            if each == token
        ]
    return made, score


def _most(after: Sequence[int]) -> tuple[int, int]:
    """The most frequent of these, but for ends, and how often it came."""
    counts = Counter(after)
    counts.pop(BREAK, None)
    if not counts:
        return BREAK, 0
    most = max(counts.values())
    first = [token for token, count in counts.items() if count == most]
    if len(first) > 1 and most > 1:
        first = list(Followers(token for token in after if token != BREAK))
    return first[0], most
