"""How a tree of drafts branches: numbers alone, so that a recipe can check them."""

from __future__ import annotations

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
