"""Accept and resample, towards any distribution (Narasimhan et al., "Faster Cascades via
Speculative Decoding", Algorithm 4).

A drafted x, drawn from q, is accepted with min(1, pi(x) / q(x)). At the first rejection the next
token is drawn from norm(max(0, pi - q)); when all are accepted, from the target. Where pi sums to
1, each drafted position has the distribution pi; else min(pi, q) and what is left over, spread as
max(0, pi - q). One small vector is all that is read from the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import probabilities
from ...sampling.randomness import RandomSource
from ...verify.chains import one_hot


def accept_and_resample(
    proposal: Proposal, pi: Tensor, draft: Tensor, target: Tensor, chance: RandomSource
) -> Verdict:
    """pi, draft: [K, V], what is wanted and what the ids were drawn from.

    target: [K + 1, V].
    """
    # pi(x) >= q(x): the drafted token x is always accepted
    # pi(x) < q(x): x is accepted with probability pi(x) / q(x)
    # after the first rejection the next token is drawn from max(0, pi - q), normalised
    accepted = leading(chance.accept(acceptance(pi, draft, proposal.ids)))
    left = residual(pi, draft, target, accepted)
    return verdict(proposal, accepted, numbered(chance.draw(left), left))


def verdict(proposal: Proposal, accepted: Tensor, next_token: Tensor) -> Verdict:
    """The one host read of a round. accepted, next_token: one int64 each."""
    read = torch.cat([accepted.view(1), next_token.view(1), proposal.ids]).tolist()
    return Verdict(read[0], read[1], read[2:])


def at(rows: Tensor, index: Tensor) -> Tensor:
    """rows[index]. Indexing with a tensor of no dimensions would wait for the device."""
    return rows.index_select(0, index.view(1))[0]


def leading(accept: Tensor) -> Tensor:
    """[K] bool -> [] int64, how many are accepted before the first rejection."""
    return accept.long().cumprod(0).sum()


def target_distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """[T, V] what the target's token is drawn from: a one-hot at temperature 0. Rows of logits that
    are no numbers give rows that are none."""
    if not sampling.greedy:
        return probabilities(logits, sampling)
    like = logits if logits.dtype == torch.float64 else logits.float()
    ids = likeliest(logits)
    greatest = like.gather(-1, ids.unsqueeze(-1))
    return one_hot(ids, like) + torch.where(greatest.isnan(), greatest, 0.0)


def draft_distribution(proposal: Proposal, like: Tensor) -> Tensor:
    """[K, V] what each drafted id was drawn from: a one-hot for a deterministic draft."""
    return one_hot(proposal.ids, like) if proposal.probs is None else proposal.probs.to(like.dtype)


def draft_raw(proposal: Proposal, like: Tensor) -> Tensor:
    """[K, V] the drafter's distributions at temperature 1, unfiltered; likewise."""
    if proposal.raw is not None:
        return proposal.raw.to(like.dtype)
    if proposal.probs is not None and len(proposal.ids):
        raise ValueError("a drafter that draws its tokens must give `raw` where it is asked to")
    return one_hot(proposal.ids, like)


def acceptance(pi: Tensor, draft: Tensor, ids: Tensor) -> Tensor:
    """[K] pi(x) / q(x) at the drafted ids; above 1 means certain."""
    x = ids.unsqueeze(1)
    return (pi.gather(1, x) / draft.gather(1, x)).squeeze(1)


def read_freely(tensor: Tensor) -> bool:
    """Whether its numbers are the host's, so that reading one costs less than copying a row."""
    return tensor.device.type == "cpu"


def residual(pi: Tensor, draft: Tensor, target: Tensor, accepted: Tensor) -> Tensor:
    """[V], unnormalised: max(0, pi - q) at the first rejected position; the target's own
    distribution where all were accepted, or where pi exceeds q nowhere."""
    k = len(draft)
    if read_freely(pi):
        n = int(accepted)
        if n < k and (left := (pi[n] - draft[n]).clamp_(min=0)).sum() > 0:
            return left
        return target[n]
    last = at(target, accepted)
    if k == 0:
        return last
    row = accepted.clamp(max=k - 1)
    left = (at(pi, row) - at(draft, row)).clamp(min=0)
    return torch.where((accepted < k) & (left.sum() > 0), left, last)
