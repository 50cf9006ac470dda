"""Lenient verification inside a cascade, where a draft model verifies what the target then verifies
again (D14; Chen et al., "Cascade Speculative Drafting", section 3.1).

Sampled: token x, drawn from q, is accepted with min(1, l p(x) / q(x)); at the first rejection the
next token is drawn from norm(max(0, p - q)); when all are accepted, from p. Greedy: x is accepted
while it is the verifying model's argmax or l p(x) >= q(x), p and q the models' raw probabilities.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import probabilities, raw_probabilities
from ...sampling.randomness import RandomSource
from ...verify.step import (
    accept_and_resample,
    acceptance,
    at,
    draft_distribution,
    draft_raw,
    leading,
    verdict,
)
from .lossy import lossy


class Lenient:
    """lenience: l >= 1. 1 is strict: the verifying model's distribution, and greedily its argmax.

    Its verdicts hold the distribution of what was accepted, which the target's own verification
    needs to be lossless.
    """

    def __init__(self, lenience: float = 1.0) -> None:
        self.lenience = lenience
        self.lossless = lenience == 1
        self.needs_raw = lenience > 1

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        if sampling.greedy:
            best = numbered(likeliest(target_logits), target_logits)  # [K + 1]
            accept = best[:-1] == proposal.ids
            if self.needs_raw:
                accept |= self._likely_enough(proposal, target_logits[:-1])
            accepted = leading(accept)
            return verdict(proposal, accepted, at(best, accepted))
        target = probabilities(target_logits, sampling)  # [K + 1, V]
        draft = draft_distribution(proposal, target)  # [K, V]
        pi = lossy(target[:-1], draft, alpha=1 - 1 / self.lenience)
        made = accept_and_resample(proposal, pi, draft, target, chance)
        distribution = torch.cat([reached_distribution(pi, draft, target[:-1]), target[-1:]])
        # the last token has its position's, whether it replaces a draft or follows them all
        return replace(made, distribution=distribution[: made.accepted + 1])

    def _likely_enough(self, proposal: Proposal, logits: Tensor) -> Tensor:
        """[K] bool: l p(x) >= q(x)."""
        sure = raw_probabilities(logits)  # [K, V]
        odds = acceptance(sure, draft_raw(proposal, sure), proposal.ids)
        return self.lenience * odds >= 1


def reached_distribution(pi: Tensor, draft: Tensor, target: Tensor) -> Tensor:
    """[K, V], the distribution that accepting and resampling (`step.py`) gives each position that
    is reached: min(pi, q), and the rest spread as max(0, pi - q). pi need not sum to 1."""
    kept = torch.minimum(pi, draft)
    left = (pi - draft).clamp(min=0)
    total = left.sum(-1, keepdim=True)
    spread = torch.where(total > 0, left / total, target)
    return kept + (1 - kept.sum(-1, keepdim=True)).clamp(min=0) * spread
