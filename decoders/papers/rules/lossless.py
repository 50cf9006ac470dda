"""Speculative sampling (D2; Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", Algorithm 1): a drafted x, drawn from q, is accepted with min(1, p(x) / q(x)).

Answers are distributed as the target's own, but not the ones that it writes to the same seed.
"""

from __future__ import annotations

from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.filters import probabilities
from ...sampling.randomness import RandomSource
from ...verify import Coupled
from .step import accept_and_resample, draft_distribution


class Lossless:
    """Accept the most that independent draws allow."""

    lossless = needs_probs = True
    needs_raw = False

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        if sampling.greedy:
            return Coupled().verify(proposal, target_logits, sampling, chance, place)
        target = probabilities(target_logits, sampling)  # [K + 1, V]
        draft = draft_distribution(proposal, target)  # [K, V]
        return accept_and_resample(proposal, target[:-1], draft, target, chance)
