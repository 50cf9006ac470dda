"""A draft from an index: what followed the longest earlier match, each token with its chance.

Of the places that a match has, those that agree on a token go on together (SuffixDecoding, Oliaro
et al., arXiv 2411.04975, section 4: a token's share of its parent's occurrences, multiplied along
the path). The paper's shares count what occurred once as certain; here a share is weighed against
how often copies after a match of that length are accepted, so that it is a chance like any
drafter's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .index import SuffixIndex

WEIGHT = 2.0  # occurrences that the acceptance of copies counts for

Followers = list[tuple[tuple[int, ...], int]]  # texts after a match, and how often each came


@dataclass
class Draft:
    """A draft that was copied, the likeliest tokens first.

    chances: at i, that token i and all before it on its path are accepted.
    matched: how many tokens each one's match had, 0 for a token from a table.
    parents: in a tree as in `Proposal.parents`; None for a chain.
    """

    ids: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    parents: list[int] | None = None

    def cut(self, most: int) -> Draft:
        """The first tokens alone."""
        parents = None if self.parents is None else self.parents[:most]
        return Draft(self.ids[:most], self.chances[:most], self.matched[:most], parents)


@dataclass(frozen=True)
class Wanted:
    """The draft that is asked of an index.

    depth: most tokens along a path.
    shortest: tokens of a match, at least 2.
    width: most tokens that may follow one; above 1 the draft is a tree.
    nodes: most tokens of a tree.
    least: leave out what has no greater chance.
    """

    depth: int
    shortest: int = 2
    width: int = 1
    nodes: int = 16
    least: float = 0.0


def draft(
    index: SuffixIndex,
    tail: Sequence[int],
    wanted: Wanted,
    acceptance: Callable[[int], float],
    runs_on: bool = False,
) -> Draft:
    """Draft what may follow `tail`.

    acceptance: the chance that a copied token is accepted, by the length of its match.
    runs_on: `tail` is the end of the index's last text, so that a copy which reaches it goes on
        into what it has just copied.
    """
    matched, places = index.find(tail, wanted.shortest)
    came = Counter(index.after(place, wanted.depth, runs_on) for place in places)
    grown = chain if wanted.width == 1 else tree
    return grown(list(came.items()), matched, wanted, acceptance)


def chain(
    followers: Followers, matched: int, wanted: Wanted, acceptance: Callable[[int], float]
) -> Draft:
    """The token that came most often, and so on from it. followers: the latest first."""
    made, chance = Draft(), 1.0
    for depth in range(wanted.depth):
        ((token, share, followers),) = ranked(followers, depth, matched, 1, acceptance) or [_NONE]
        chance *= share
        if chance <= wanted.least:
            break
        made.ids.append(token)
        made.chances.append(chance)
        made.matched.append(matched + depth)
    return made


def tree(
    followers: Followers, matched: int, wanted: Wanted, acceptance: Callable[[int], float]
) -> Draft:
    """The likeliest tokens, each after the one that it follows (the paper's Algorithm 1)."""
    made, parents, waiting = Draft(), list[int](), list[_Waiting]()
    node = _Waiting(-1.0, -1, -1, 0, -1, followers)
    for number in range(-1, wanted.nodes):
        if number >= 0:
            if not waiting:
                break
            node = heapq.heappop(waiting)
            made.ids.append(node.token)
            made.chances.append(-node.minus_chance)
            made.matched.append(matched + node.depth - 1)
            parents.append(node.parent)
        found = ranked(node.followers, node.depth, matched, wanted.width, acceptance)
        for rank, (token, share, after) in enumerate(found):
            chance, order = node.minus_chance * share, (number + 1) * wanted.width + rank
            if -chance > wanted.least:
                child = _Waiting(chance, order, number, node.depth + 1, token, after)
                heapq.heappush(waiting, child)
    made.parents = parents
    return made


@dataclass(order=True)
class _Waiting:
    """A token that may be drafted next. Of equal chances the one that was found first.

    order: ordinal among those found.
    parent: its number in the draft, -1 for none.
    depth: of the token, from 1.
    """

    minus_chance: float
    order: int
    parent: int = field(compare=False)
    depth: int = field(compare=False)
    token: int = field(compare=False)
    followers: Followers = field(compare=False)


_NONE: tuple[int, float, Followers] = (-1, 0.0, [])


def ranked(
    followers: Followers, depth: int, matched: int, width: int, acceptance: Callable[[int], float]
) -> list[tuple[int, float, Followers]]:
    """At most so many tokens at a depth of the texts, the likeliest first: each with its chance and
    the texts that go on with it. Of tokens that came equally often the latest."""
    if len(followers) == 1:  # most often
        text, votes = followers[0]
        if len(text) <= depth:
            return []
        share = (votes - 1 + WEIGHT * acceptance(matched + depth)) / (votes - 1 + WEIGHT)
        return [(text[depth], share, followers)]
    by_token: dict[int, Followers] = {}
    for each in followers:
        if len(each[0]) > depth:
            by_token.setdefault(each[0][depth], []).append(each)
    if not by_token:
        return []
    counts = {token: sum(times for _, times in texts) for token, texts in by_token.items()}
    votes, usual, left = sum(counts.values()), acceptance(matched + depth), 1.0
    made = []
    for token in sorted(counts, key=lambda token: -counts[token])[:width]:
        share = min(left, (counts[token] - 1 + WEIGHT * usual) / (votes - 1 + WEIGHT))
        left -= share
        made.append((token, share, by_token[token]))
    return made
