"""BiLD's rollback (D12; Kim et al., "Speculative Decoding with Big Little Decoder", section 3.4 and
Algorithm 1).

The first drafted token that the target finds too surprising is replaced by the target's own token;
where none is, the target's token follows. Greedy, that token may be the very one that was drafted:
Algorithm 1 as printed then drops what was drafted after it all the same (`keep_argmax=False`).

Its fallback is the draft length's `min_confidence`: the drafter hands over before a token that it
is unsure of, and at the latest after `k` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import log_probabilities
from ...sampling.randomness import RandomSource
from ...verify.step import at, leading, target_distribution, verdict


@dataclass(frozen=True)
class BiLD:
    """The rule that keeps a drafted x while -log p(x) < rollback, p the target's at temperature 1.

    rollback: nats. At 0 only what the target would have written is accepted, so that the
        distribution is the target's.
    keep_argmax: at temperature 0, whether the target's most likely token is accepted however
        surprising it is: to replace it on its own only costs a round. False is Algorithm 1 as
        printed. Without meaning when sampling: the target's token is then drawn from its filtered
        distribution (section 7.4).
    """

    rollback: float
    keep_argmax: bool = True
    needs_raw = False

    @property
    def lossless(self) -> bool:
        return self.rollback == 0

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        log_probs = log_probabilities(target_logits[:-1])  # [K, V]
        surprise = -log_probs.gather(1, proposal.ids.unsqueeze(1)).squeeze(1)
        accept = surprise < self.rollback  # [K]
        if sampling.greedy:
            target_ids = numbered(likeliest(target_logits), target_logits)  # [K + 1]
            if self.keep_argmax:
                accept = accept | (target_ids[:-1] == proposal.ids)
            accepted = leading(accept)
            return verdict(proposal, accepted, at(target_ids, accepted))
        accepted = leading(accept)
        own = target_distribution(at(target_logits, accepted).unsqueeze(0), sampling)[0]
        return verdict(proposal, accepted, numbered(chance.draw(own), own))
