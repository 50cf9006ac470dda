"""Lossless verification: the answers are distributed as the target's (D2; Leviathan et al.,
Chen et al.).

Greedy: a drafted token is accepted while it is the target's argmax. Sampled: token x is accepted
with min(1, p(x) / q(x)); at the first rejection the next token is drawn from norm(max(0, p - q));
when all are accepted, from p. A deterministic draft, q(x) = 1, is accepted while it is what the
target draws: the distribution is the same, and the answer is the target's own with that seed.

A tree, in which several drafted tokens may follow one (D17): greedily the branch of the target's
argmax is accepted. Sampled, a node's children are tried one after another. Child x, drawn from q,
is accepted with min(1, p(x) / q(x)); when it is rejected, p becomes norm(max(0, p - q)) for the
next child, whose q knows the children before it; when all are rejected, the next token is drawn
from what is left of p (recursive rejection sampling: Miao et al., SpecInfer, multi-step speculative
sampling; Yang et al., Multi-Candidate Speculative Decoding). A chain is the tree in which no node
has a second child.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..records import Proposal, Sampling, Verdict
from ..sampling.argmax import likeliest, numbered
from ..sampling.filters import probabilities
from ..sampling.randomness import RandomSource
from .step import accept_and_resample, acceptance, at, draft_distribution, leading, verdict


@dataclass(frozen=True)
class Layout:
    """What a tree's shape alone says, on the device. Row 0 of the target's logits is the newest
    token's, row i + 1 is node i's.

    row: [K] the row that judges each node.
    line: [K, K] bool, whether node j is node i or one of its ancestors.
    elder: [K, K] bool, whether j is a sibling of i that is tried before it.
    ranks: the nodes that are some parent's first child, those that are a second one, and so on.
    """

    row: Tensor
    line: Tensor
    elder: Tensor
    ranks: list[Tensor]


@lru_cache(maxsize=256)
def layout(parents: tuple[int, ...], device: torch.device) -> Layout:
    """Layout of a tree given as in Proposal.parents."""
    parent = torch.tensor(parents)
    line = torch.eye(len(parents), dtype=torch.bool)
    for node, above in enumerate(parents):
        if above >= 0:
            line[node] |= line[above]
    elder = (parent.unsqueeze(1) == parent).tril(-1)
    rank = elder.sum(1)
    ranks = [(rank == r).nonzero().flatten().to(device) for r in range(int(rank.max()) + 1)]
    return Layout((parent + 1).to(device), line.to(device), elder.to(device), ranks)


def verify_tree(
    proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
) -> Verdict:
    """Verify a proposal with parents.

    target_logits: [K + 1, V], row i + 1 for what follows node i.
    """
    assert proposal.parents is not None
    ids, tree = proposal.ids, layout(proposal.parents, proposal.ids.device)
    if sampling.greedy:
        target_ids = numbered(likeliest(target_logits), target_logits)  # [K + 1]
        taken = path(target_ids[tree.row] == ids, tree)
        next_token = target_ids[last_row(taken)]
    else:
        target_probs = probabilities(target_logits, sampling)  # [K + 1, V]
        odds, left = try_children(target_probs, proposal, tree)
        taken = path(chance.accept(odds), tree)
        rest = left[last_row(taken)]
        next_token = numbered(chance.draw(rest), rest)
    # the one host read of a round
    read = torch.cat([next_token.view(1), ids, taken.long()]).tolist()
    nodes = [node for node, on_it in enumerate(read[1 + len(ids) :]) if on_it]
    return Verdict(len(nodes), read[0], read[1 : 1 + len(ids)], path=nodes)


def try_children(target_probs: Tensor, proposal: Proposal, tree: Layout) -> tuple[Tensor, Tensor]:
    """[K] the chance that each node is accepted once its elder siblings are rejected, above 1
    meaning 1; and [K + 1, V] what is left of each row when all its children are rejected."""
    left, draft = target_probs.clone(), draft_distribution(proposal, target_probs)
    odds = target_probs.new_empty(len(proposal.ids))
    for nodes in tree.ranks:
        rows = tree.row[nodes]
        p, q = left[rows], draft[nodes]
        odds[nodes] = acceptance(p, q, proposal.ids[nodes])
        rest = (p - q).clamp(min=0)
        mass = rest.sum(-1, keepdim=True)
        left[rows] = torch.where(mass > 0, rest / mass, p)  # p == q: no child is rejected
    return odds, left


def path(accept: Tensor, tree: Layout) -> Tensor:
    """[K] bool: the nodes on the path, given which would be accepted when tried."""
    first = accept & ~(tree.elder & accept).any(1)
    return (first | ~tree.line).all(1)


def last_row(taken: Tensor) -> Tensor:
    """[] int64: the row of the path's last node; 0, the newest token's, where it has none."""
    rows = torch.arange(1, len(taken) + 1, device=taken.device)
    return (rows * taken).max()


class Lossless:
    """Accept what the target would have written itself."""

    lossless = True
    needs_raw = False

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        if proposal.parents is not None:
            return verify_tree(proposal, target_logits, sampling, chance)
        if sampling.greedy:
            return _greedy(proposal, target_logits)
        target = probabilities(target_logits, sampling)  # [K + 1, V]
        if proposal.probs is None:
            drawn = chance.follow(target, proposal.ids)  # [K + 1]
            accepted = leading(drawn[:-1] == proposal.ids)
            next_token = numbered(at(drawn, accepted), at(target, accepted))
            found = verdict(proposal, accepted, next_token)
            chance.use(found.accepted + 1)
            return found
        draft = draft_distribution(proposal, target)  # [K, V]
        return accept_and_resample(proposal, target[:-1], draft, target, chance)


def _greedy(proposal: Proposal, target_logits: Tensor) -> Verdict:
    """No softmax, and one read from the device: a few ids are compared sooner here than there."""
    k = len(proposal.ids)
    best_ids = numbered(likeliest(target_logits), target_logits)
    read = torch.cat([proposal.ids, best_ids]).tolist()
    return compared(read[:k], read[k:])


def compared(drafted: list[int], best: list[int]) -> Verdict:
    """Compare a chain [K] with the likeliest tokens [K + 1], which are numbers of `numbered`."""
    k = len(drafted)
    accepted = next((i for i in range(k) if drafted[i] != best[i]), k)
    return Verdict(accepted, best[accepted], drafted)
