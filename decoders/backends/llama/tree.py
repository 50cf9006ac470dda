"""A sequence that ends in a tree: which of its last positions may look at which.

Every node has a cache slot of its own, in the order in which nodes are read, and is rotated
by its depth. A mask lets it see what came before the tree, its ancestors and itself, so that one
pass scores all branches (tree attention; Miao et al., SpecInfer; Cai et al., Medusa).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Tree:
    """Nodes are numbered from 0 in the order of their slots base, base + 1, ...

    base: positions before the tree.
    parents: of each node, -1 for a child of position base - 1.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.parents: list[int] = []
        self._depths: list[int] = []  # 0 for the first level
        self._sees = np.zeros((0, 0), dtype=np.bool_)  # row i: node i's ancestors and itself

    @property
    def end(self) -> int:
        """Positions held, the tree's nodes included."""
        return self.base + len(self.parents)

    @property
    def positions(self) -> list[int]:
        """[end] the position that each slot stands for: a node's depth below the base."""
        return [*range(self.base), *(self.base + depth for depth in self._depths)]

    def grow(self, parents: Sequence[int]) -> tuple[list[int], Tensor]:
        """New nodes; their T rotary positions, and the mask [T, end] on the host, True where a new
        node may look."""
        old, new = len(self.parents), len(self.parents) + len(parents)
        sees = np.zeros((new, new), dtype=np.bool_)
        sees[:old, :old] = self._sees
        for node, parent in enumerate(parents, old):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} names {parent} as its parent; name an earlier one")
            if parent >= 0:
                sees[node] = sees[parent]
            sees[node, node] = True
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            self.parents.append(parent)
        self._sees = sees
        mask = torch.ones(len(parents), self.end, dtype=torch.bool)
        mask[:, self.base :] = torch.from_numpy(sees[old:])
        return [self.base + depth for depth in self._depths[old:]], mask

    def keep(self, nodes: Sequence[int]) -> tuple[int, list[int]]:
        """Forget all nodes but these, which are given in growing order, each with its ancestors;
        nodes[i] becomes node i.

        Returns the first cache slot that changes, and the slots whose contents go to it and those
        after it.
        """
        number = {-1: -1, **{node: i for i, node in enumerate(nodes)}}
        known = all(0 <= node < len(self.parents) for node in nodes)
        if not known or list(nodes) != sorted(number.keys() - {-1}):
            raise ValueError(f"cannot keep {list(nodes)} of {len(self.parents)} nodes in order")
        if any(self.parents[node] not in number for node in nodes):
            raise ValueError(f"cannot keep {list(nodes)}: a node's parent is not among them")
        self.parents = [number[self.parents[node]] for node in nodes]
        self._depths = [self._depths[node] for node in nodes]
        self._sees = self._sees[np.ix_(nodes, nodes)]
        still = next((i for i, node in enumerate(nodes) if node != i), len(nodes))
        return self.base + still, [self.base + node for node in nodes[still:]]

    @property
    def is_chain(self) -> bool:
        """Whether the nodes simply follow each other."""
        return self.parents == list(range(-1, len(self.parents) - 1))


def require_chain(tree: Tree | None) -> None:
    """A chain can be appended; raises ValueError where the sequence ends in branches."""
    if tree is not None and not tree.is_chain:
        raise ValueError("the sequence ends in a tree; keep a path of it first")


def require_rollback(length: int, held: int, tree: Tree | None, reach: int = 0) -> None:
    """A sequence of `held` positions can be taken back to `length`, a tree whole; raises
    ValueError. reach: the least length above 0 that it can be taken back to."""
    most = held if tree is None or tree.is_chain else tree.base
    if not 0 <= length <= most:
        raise ValueError(f"cannot truncate {most} positions to {length}")
    if 0 < length < reach:
        raise ValueError(f"cannot truncate to {length}, as layers have let go what that needs")
