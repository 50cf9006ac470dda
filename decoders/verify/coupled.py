"""The verifier: a drafted token is accepted where it is the one that the target itself writes.

At temperature 0 that is the most likely token, above it the token that the clocks of its place name
(../sampling/race.py). So the answer is a function of the target and of the clocks alone, whatever
is drafted, and the clocks of a place that was rejected may be used again under another prefix: no
token that was kept depends on them. A drafter that goes by the same clocks is mostly right.

A tree is verified in the same pass (Chen et al., "Cascade Speculative Drafting", appendix B):
of a node's children at most one is what the target writes.
"""

from __future__ import annotations

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
        k, parents = len(proposal.ids), proposal.parents
        places: int | Tensor = place
        if parents is not None and not sampling.greedy:
            places = depths(parents, proposal.ids.device) + place
        after = proposal.ids if parents is None else None
        own_ids = own_tokens(target_logits, sampling, chance, places, after)
        read = torch.cat([proposal.ids, own_ids]).tolist()
        drafted, own = read[:k], read[k:]
        if parents is None:
            return compared(drafted, own)
        path = [-1]  # the newest token, whose row is the first
        for node, above in enumerate(parents):
            if above == path[-1] and drafted[node] == own[above + 1]:
                path.append(node)
        return Verdict(len(path) - 1, own[path[-1] + 1], drafted, path=path[1:])


def compared(drafted: list[int], own: list[int]) -> Verdict:
    """Compare a chain [K] with the target's own tokens [K + 1], which are numbers of `numbered`."""
    k = len(drafted)
    accepted = next((i for i in range(k) if drafted[i] != own[i]), k)
    return Verdict(accepted, own[accepted], drafted)


@lru_cache(maxsize=256)
def depths(parents: tuple[int, ...], device: torch.device) -> Tensor:
    """[K + 1] how many tokens of a tree precede what each row of the target's logits is for: row 0
    is the newest token's, row i + 1 node i's. parents: as in Proposal."""
    found = [0]
    for above in parents:
        found.append(found[above + 1] + 1)
    return torch.tensor(found, device=device)
