"""The verifier: a drafted token is accepted where it is the one that the target itself writes.

At temperature 0 that is the most likely token, above it the token that the clocks of its place name
(../sampling/race.py). So the answer is a function of the target and of the clocks alone, whatever
is drafted, and the clocks of a place that was rejected may be used again under another prefix: no
token that was kept depends on them. A drafter that goes by the same clocks is mostly right.

A tree is verified in the same pass (Chen et al., "Cascade Speculative Drafting", appendix B):
of a node's children at most one is what the target writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..records import Proposal, Sampling, Verdict
from ..sampling.filters import own_tokens
from ..sampling.randomness import RandomSource


class Coupled:
    """Accept what the target would have written itself."""

    lossless = True
    needs_raw = needs_probs = False

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        """One host read: a few ids are compared sooner here than there."""
        k = len(proposal.ids)
        if proposal.parents is not None:
            tree = layout(proposal.parents, proposal.ids.device)
            places = place if sampling.greedy else tree.depths + place
            own = own_tokens(target_logits, sampling, chance, places)
            taken = path(own[tree.row] == proposal.ids, tree)
            read = torch.cat([own[last_row(taken)].view(1), proposal.ids, taken.long()]).tolist()
            nodes = [node for node, on_it in enumerate(read[1 + k :]) if on_it]
            return Verdict(len(nodes), read[0], read[1 : 1 + k], path=nodes)
        own = own_tokens(target_logits, sampling, chance, place, proposal.ids)
        read = torch.cat([proposal.ids, own]).tolist()
        return compared(read[:k], read[k:])


def compared(drafted: list[int], own: list[int]) -> Verdict:
    """Compare a chain [K] with the target's own tokens [K + 1], which are numbers of `numbered`."""
    k = len(drafted)
    accepted = next((i for i in range(k) if drafted[i] != own[i]), k)
    return Verdict(accepted, own[accepted], drafted)


@dataclass(frozen=True)
class Layout:
    """What a tree's shape alone says, on the device. Row 0 of the target's logits is the newest
    token's, row i + 1 is node i's.

    row: [K] the row that judges each node.
    depths: [K + 1] how many tokens of the tree precede what each row is for.
    line: [K, K] bool, whether node j is node i or one of its ancestors.
    elder: [K, K] bool, whether j is a sibling of i that is tried before it.
    """

    row: Tensor
    depths: Tensor
    line: Tensor
    elder: Tensor


@lru_cache(maxsize=256)
def layout(parents: tuple[int, ...], device: torch.device) -> Layout:
    """Layout of a tree given as in Proposal.parents."""
    parent = torch.tensor(parents)
    line = torch.eye(len(parents), dtype=torch.bool)
    for node, above in enumerate(parents):
        if above >= 0:
            line[node] |= line[above]
    elder = (parent.unsqueeze(1) == parent).tril(-1)
    depths = torch.cat([torch.zeros(1, dtype=torch.int64), line.sum(1)])
    return Layout(*(part.to(device) for part in (parent + 1, depths, line, elder)))


def path(accept: Tensor, tree: Layout) -> Tensor:
    """[K] bool: the nodes on the path, given which would be accepted when tried."""
    first = accept & ~(tree.elder & accept).any(1)
    return (first | ~tree.line).all(1)


def last_row(taken: Tensor) -> Tensor:
    """[] int64: the row of the path's last node; 0, the newest token's, where it has none."""
    rows = torch.arange(1, len(taken) + 1, device=taken.device)
    return (rows * taken).max()
