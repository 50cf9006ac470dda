"""Lossless verification: the output's law is the target's (D2; Leviathan et al., Chen et al.).

Greedy: a drafted token stands while it is the target's argmax. Sampled: token x stands with
min(1, p(x) / q(x)); at the first that falls, the next token is drawn from norm(max(0, p - q)); when
all stand, from p. Nothing is read from the device but one small vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..chance import Chance
from ..records import Proposal, Sampling, Verdict
from ..sampling import probabilities
from .tree import verify_tree


class Lossless:
    """Accept what the target would have written itself."""

    lossless = True

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: Chance
    ) -> Verdict:
        if proposal.parents is not None:
            return verify_tree(proposal, target_logits, sampling, chance)
        if sampling.greedy:
            target_ids = target_logits.argmax(-1)  # [K + 1]
            accepted = leading(target_ids[:-1] == proposal.ids)
            next_token = target_ids[accepted]
        else:
            target_probs = probabilities(target_logits, sampling)  # [K + 1, V]
            draft_probs = draft_distribution(proposal, target_probs)  # [K, V]
            stands = chance.accept(acceptance(target_probs[:-1], draft_probs, proposal.ids))
            accepted = leading(stands)
            next_token = chance.draw(residual(target_probs, draft_probs, accepted))
        # the one host read of a round
        read = torch.cat([accepted.view(1), next_token.view(1), proposal.ids]).tolist()
        return Verdict(read[0], read[1], read[2:])


def leading(stands: Tensor) -> Tensor:
    """[K] bool -> [] int64, how many stand before the first that falls."""
    return stands.long().cumprod(0).sum()


def draft_distribution(proposal: Proposal, like: Tensor) -> Tensor:
    """[K, V] the law each drafted id was drawn from: a one-hot for a deterministic draft."""
    if proposal.probs is not None:
        return proposal.probs.to(like.dtype)
    k = len(proposal.ids)
    return like.new_zeros(k, like.shape[-1]).scatter_(1, proposal.ids.view(k, 1), 1.0)


def acceptance(target_probs: Tensor, draft_probs: Tensor, ids: Tensor) -> Tensor:
    """[K] p(x) / q(x) at the drafted ids; above 1 means certain."""
    at = ids.unsqueeze(1)
    return (target_probs.gather(1, at) / draft_probs.gather(1, at)).squeeze(1)


def residual(target_probs: Tensor, draft_probs: Tensor, accepted: Tensor) -> Tensor:
    """[V], unnormalised: max(0, p - q) at the first rejected position, p where all stood."""
    none = draft_probs.new_zeros(1, draft_probs.shape[-1])
    p = target_probs[accepted]
    left = (p - torch.cat([draft_probs, none])[accepted]).clamp(min=0)
    return torch.where(left.sum() > 0, left, p)  # p == q up to rounding leaves nothing over
