"""BiLD's rollback (D12; Kim et al., "Speculative Decoding with Big Little Decoder", section 3.4).

The first drafted token that the target finds too surprising is replaced by the target's own token;
where none is, the target's token follows. Its fallback is the draft length's `min_confidence`: the
drafter hands over before a token that it is unsure of, and at the latest after `k` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..chance import Chance
from ..records import Proposal, Sampling, Verdict
from .step import at, leading, target_distribution, verdict


@dataclass(frozen=True)
class BiLD:
    """A drafted x stands while -log p(x) < rollback, in nats, p the target's at temperature 1.

    Greedy, the target's likeliest token stands too: to replace it by itself would only cost a
    round. Sampled, the target's token is drawn from its filtered distribution (section 7.4). With a
    rollback of 0 nothing stands but what the target would have written, so that its law is kept.
    """

    rollback: float
    needs_raw = False

    @property
    def lossless(self) -> bool:
        return self.rollback == 0

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: Chance
    ) -> Verdict:
        scores = target_logits if target_logits.dtype == torch.float64 else target_logits.float()
        log_probs = scores[:-1].log_softmax(-1).gather(1, proposal.ids.unsqueeze(1)).squeeze(1)
        stands = -log_probs < self.rollback  # [K]
        if sampling.greedy:
            target_ids = target_logits.argmax(-1)  # [K + 1]
            accepted = leading(stands | (target_ids[:-1] == proposal.ids))
            return verdict(proposal, accepted, at(target_ids, accepted))
        accepted = leading(stands)
        own = target_distribution(at(target_logits, accepted).unsqueeze(0), sampling)[0]
        return verdict(proposal, accepted, chance.draw(own))
