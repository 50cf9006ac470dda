"""Lossless verification: the answers are distributed as the target's (D2; Leviathan et al.,
Chen et al.).

Greedy: a drafted token is accepted while it is the target's argmax. Sampled: token x is accepted
with min(1, p(x) / q(x)); at the first rejection the next token is drawn from norm(max(0, p - q));
when all are accepted, from p. A deterministic draft, q(x) = 1, is accepted while it is what the
target draws: the distribution is the same, and the answer is the target's own with that seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..records import Proposal, Sampling, Verdict
from ..sampling.argmax import likeliest, numbered
from ..sampling.filters import probabilities
from ..sampling.randomness import RandomSource
from .step import accept_and_resample, at, draft_distribution, leading, verdict
from .tree import verify_tree


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
