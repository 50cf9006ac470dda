"""Keys and values of prompts that were read, so that what begins alike is not read again.

A tree of pieces of text for every model and every user: a conversation's next turn follows the path
of the turn before, and prompts that share a beginning share the nodes of it (Zheng et al., SGLang:
Efficient Execution of Structured Language Model Programs, 2024, section 3). Users never meet: what
one has read says nothing of what another asks, not even by the time that it takes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..common.errors import DraftpickError

if TYPE_CHECKING:
    from torch import Tensor

Copies: TypeAlias = "list[Tensor]"  # of some positions n: each [..., n, d]
CopyOut: TypeAlias = "Callable[[int, int], Copies]"  # the positions from one to before another


class Owner(NamedTuple):
    """Whose positions may stand for another's.

    weights: identity of the model's.
    layout: what a position has besides keys and values, and how it was computed where that matters.
    user: for whom the prompt was read.
    """

    weights: int
    layout: tuple[object, ...]
    user: str


@dataclass(eq=False)
class Node:
    """A piece of a text that follows its parent's.

    ids: at least one; none at the root.
    copies: of its positions.
    """

    ids: tuple[int, ...]
    copies: Copies
    parent: Node | None
    owner: Owner
    children: dict[int, Node] = field(default_factory=dict)  # by the first id of each

    @property
    def bytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies)


class PrefixStore:
    """Used by one thread; figures may be read by others.

    limit: bytes that all kept positions may take together, whichever model's and user's they are.
        Where more come, those go first that were used least recently, ends before beginnings. While
        a piece is divided, it is held twice.

    bytes, tokens: kept now.
    asked: tokens of the target's prompts that were looked up.
    saved: those of them that were not read.
    lookups, hits: prompts of the target that were looked up, and those of which a part was not
        read.
    evicted: tokens that made room for others.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise DraftpickError(
                f"kept prefixes need room for some bytes, not {limit}; to keep none, leave the "
                "store out"
            )
        self.limit = limit
        self.bytes = self.tokens = 0
        self.asked = self.saved = self.lookups = self.hits = self.evicted = 0
        self._models: set[int] = set()  # those that are followed
        self._roots: dict[Owner, Node] = {}
        # The least recently used first, and every node before its parent, so that the first one
        # never has children.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        """Pieces that are kept."""
        return len(self._order)

    def counted(self, tokens: int, saved: int) -> None:
        """A prompt of the target's was read, but for `saved` of its tokens."""
        self.lookups += 1
        self.asked += tokens
        self.saved += saved
        self.hits += saved > 0

    def follow(self, weights: object) -> None:
        """What is kept of a model goes when the model does, of whose identity it is."""
        if id(weights) not in self._models:
            self._models.add(id(weights))
            weakref.finalize(weights, _gone, weakref.ref(self), id(weights))

    def match(self, owner: Owner, ids: Sequence[int]) -> int:
        """How many of the first ids are kept."""
        return sum(count for _, count in self._path(owner, ids))

    def take(self, owner: Owner, ids: Sequence[int]) -> list[tuple[int, Copies]]:
        """What is kept of the beginning of `ids`, piece after piece: where it begins, and its
        positions."""
        path, at, taken = self._path(owner, ids), 0, list[tuple[int, Copies]]()
        for node, count in path:
            taken.append((at, [copy[..., :count, :] for copy in node.copies]))
            at += count
        self._touch(node for node, _ in path)
        return taken

    def keep(self, owner: Owner, ids: Sequence[int], copy: CopyOut, each: int, by: int = 1) -> int:
        """Keep the positions of `ids`, as many from the first as there is room for; how many are
        kept now.

        copy: called for those that are not kept yet.
        each: bytes of a position.
        by: what is kept of `ids` is a multiple of it.
        """
        path = self._path(owner, ids)
        at, end = sum(count for _, count in path), len(ids) // by * by
        if end <= at:
            self._touch(node for node, _ in path)
            return at
        root = self._roots.get(owner) or Node((), [], None, owner)
        parent = path[-1][0] if path else root
        if path and path[-1][1] < len(parent.ids):
            parent = self._divided(parent, path[-1][1])
        line = [*(node for node, _ in path[:-1]), *([parent] if parent.ids else [])]
        self._touch(line)
        room = self._make_room((end - at) * each, set(line))
        end = min(end, at + room // each) // by * by
        if end > at:
            node = Node(tuple(ids[at:end]), copy(at, end), parent, owner)
            self._roots[owner] = root  # or its last piece made room
            parent.children[node.ids[0]] = node
            self._order[node] = None
            self._count(node, 1)
            self._touch([*line, node])
        return max(at, end)

    def clear(self) -> None:
        """Let go everything."""
        for weights in {owner.weights for owner in self._roots}:
            self.forget(weights)

    def forget(self, weights: int, user: str | None = None) -> None:
        """Let go all that is of a model, or that a user has of it."""
        for owner in [each for each in self._roots if each.weights == weights]:
            if user is None or owner.user == user:
                todo = [self._roots.pop(owner)]
                while todo:
                    node = todo.pop()
                    todo += node.children.values()
                    if node.ids:
                        del self._order[node]
                        self._count(node, -1)

    @property
    def users(self) -> int:
        """Users of whom something is kept."""
        return len({owner.user for owner in list(self._roots)})  # asked from another thread

    # -- the tree -----------------------------------------------------------------------------

    def _path(self, owner: Owner, ids: Sequence[int]) -> list[tuple[Node, int]]:
        """The nodes along `ids`, and how many of each one's ids agree, at least one."""
        at, path = 0, list[tuple[Node, int]]()
        node = self._roots.get(owner)
        while node is not None and at < len(ids):
            node = node.children.get(ids[at])
            if node is not None:
                count = agreeing(node.ids, tuple(ids[at : at + len(node.ids)]))
                path.append((node, count))
                at += count
                if count < len(node.ids):
                    break
        return path

    def _divided(self, node: Node, count: int) -> Node:
        """A node of the first `count` ids, which the rest follows."""
        assert node.parent is not None
        first = [copy[..., :count, :].clone() for copy in node.copies]
        rest = [copy[..., count:, :].clone() for copy in node.copies]
        self._count(node, -1)
        head = Node(node.ids[:count], first, node.parent, node.owner)
        node.parent.children[head.ids[0]] = head
        node.ids, node.copies, node.parent = node.ids[count:], rest, head
        head.children[node.ids[0]] = node
        self._order[head] = None
        self._count(node, 1)
        self._count(head, 1)
        return head

    # -- what is let go -----------------------------------------------------------------------

    def _touch(self, line: Iterable[Node]) -> None:
        """These, from the beginning of a text on, are used now."""
        for node in reversed(list(line)):
            self._order.move_to_end(node)

    def _make_room(self, needed: int, kept: set[Node]) -> int:
        """Bytes that are free, `needed` where that many can be without these."""
        while self.bytes + needed > self.limit and self._order:
            node = next(iter(self._order))
            if node in kept:
                break
            self._evict(node)
        return max(0, self.limit - self.bytes)

    def _evict(self, node: Node) -> None:
        assert not node.children and node.parent is not None
        del self._order[node], node.parent.children[node.ids[0]]
        self._count(node, -1)
        self.evicted += len(node.ids)
        if not node.parent.ids and not node.parent.children:
            del self._roots[node.owner]

    def _count(self, node: Node, sign: int) -> None:
        self.bytes += sign * node.bytes
        self.tokens += sign * len(node.ids)


def _gone(store: weakref.ref[PrefixStore], weights: int) -> None:
    held = store()
    if held is not None:
        held._models.discard(weights)
        held.forget(weights)


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens agree; soonest told of two sequences of the same class."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next((at for at in range(most) if one[at] != other[at]), most)
