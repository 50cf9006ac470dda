"""How a tree of drafts branches: numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeShape:
    """branch: children at each leading depth, one at those after.
    every: whether all nodes of a depth have children, or the lead, its first node, alone.
    """

    branch: tuple[int, ...]
    every: bool = False

    def width(self, depth: int) -> int:
        """Children of a node that has any; depth 0 is the first drafted position."""
        return self.branch[depth] if depth < len(self.branch) else 1

    def nodes(self, depths: int) -> int:
        """Drafted tokens of a tree so deep."""
        total, growing = 0, 1
        for depth in range(depths):
            made = growing * self.width(depth)
            total, growing = total + made, made if self.every else 1
        return total


def lead(parents: Sequence[int]) -> list[int]:
    """The nodes of a tree (see Proposal.parents) along first children."""
    nodes, node = list[int](), -1
    while node in parents:
        node = parents.index(node)
        nodes.append(node)
    return nodes


def lead_first(parents: Sequence[int]) -> tuple[list[int], tuple[int, ...] | None]:
    """The nodes with the lead in front, and their parents in that order; None for a chain. Where
    the lead is accepted, the target's cache is then in order already."""
    leads = lead(parents)
    order = leads + sorted(set(range(len(parents))) - set(leads))
    if len(leads) == len(order):
        return order, None
    place = {-1: -1, **{node: at for at, node in enumerate(order)}}
    return order, tuple(place[parents[node]] for node in order)
