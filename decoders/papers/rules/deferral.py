"""Deferral rules (Narasimhan et al., "Faster Cascades via Speculative Decoding", Table 1):
at each drafted position pi is the draft's distribution or, where the rule defers, the target's.

Every rule is a pure function of four [K, V] distributions. pi is made of target and draft as they
are sampled from, scaled and filtered. The decision is made by target_raw and draft_raw, the models'
own confidence at temperature 1 (Remark 3). A model estimates its expected loss itself: 1 - its
greatest probability, or with `log_loss` its entropy in nats (section 3.2).

At temperature 0 target and draft are one-hot, so that a drafted token is accepted unless the rule
defers and the two models' most likely tokens differ.

BiLD's rollback stands beside them, which judges the drafted token instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import log_probabilities, raw_probabilities
from ...sampling.randomness import RandomSource
from .lossy import Lossless
from .step import at, draft_raw, leading, target_distribution, verdict

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SpeculativeCascade(Lossless):
    """rule: (target, draft, target_raw, draft_raw) -> pi, `deferral` or `bild_star`."""

    rule: Rule
    lossless: bool = False
    needs_raw = True

    def wanted(self, proposal: Proposal, target: Tensor, draft: Tensor, logits: Tensor) -> Tensor:
        return self.rule(target, draft, raw_probabilities(logits), draft_raw(proposal, draft))


def deferral(
    target: Tensor,
    draft: Tensor,
    target_raw: Tensor,
    draft_raw: Tensor,
    *,
    rule: str,
    alpha: float,
    log_loss: bool = False,
) -> Tensor:
    """Defer where the draft's loss exceeds what is allowed.

    chow: alpha, whatever the target says. diff: the target's loss and alpha. opt: the same with
    alpha weighed by how likely deferring is to reject the draft (Lemmas 3 and 4).
    """
    allowed: Tensor | float = alpha
    if rule != "chow":
        weight = total_variation(target, draft) if rule == "opt" else 1.0
        allowed = loss(target_raw, log_loss) + alpha * weight
    return _mixed(loss(draft_raw, log_loss) > allowed, target, draft)


def bild_star(
    target: Tensor, draft: Tensor, target_raw: Tensor, draft_raw: Tensor, *, alpha: float
) -> Tensor:
    """Defer where the target finds the draft's most likely token more surprising than alpha nats:
    the cross-entropy of Kim et al., "Speculative Decoding with Big Little Decoder", section 4."""
    likeliest = draft_raw.argmax(-1, keepdim=True)
    return _mixed(-target_raw.gather(-1, likeliest).squeeze(-1).log() > alpha, target, draft)


def loss(raw: Tensor, log_loss: bool) -> Tensor:
    """[K] the loss that a model expects of itself."""
    return torch.special.entr(raw).sum(-1) if log_loss else 1 - raw.amax(-1)


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """[K] the chance that a token drawn from `draft` is rejected in favour of `target`."""
    return (target - draft).clamp(min=0).sum(-1)


def _mixed(defer: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return torch.where(defer.unsqueeze(-1), target, draft)


@dataclass(frozen=True)
class BiLD:
    """The rollback of Kim et al., "Speculative Decoding with Big Little Decoder", section 3.4 and
    Algorithm 1: a drafted x is kept while -log p(x) < rollback, p the target's at temperature 1.

    The first drafted token that the target finds too surprising is replaced by the target's own
    token; where none is, the target's token follows. Its fallback is the draft length's
    `min_confidence`: the drafter hands over before a token that it is unsure of, and at the latest
    after `k` tokens.

    rollback: nats. At 0 only what the target would have written is accepted, so that the
        distribution is the target's.
    keep_argmax: at temperature 0, whether the target's most likely token is accepted however
        surprising it is: to replace it on its own only costs a round. False is Algorithm 1 as
        printed, which drops what was drafted after it all the same. Without meaning when sampling:
        the target's token is then drawn from its filtered distribution (section 7.4).
    """

    rollback: float
    keep_argmax: bool = True
    needs_raw = False
    needs_probs = False

    @property
    def lossless(self) -> bool:
        return self.rollback == 0

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
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
