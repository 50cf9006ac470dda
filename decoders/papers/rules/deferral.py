"""Deferral rules (D5-D8; Narasimhan et al., "Faster Cascades via Speculative Decoding", Table 1):
at each drafted position pi is the draft's distribution or, where the rule defers, the target's.

Every rule is a pure function of four [K, V] distributions. pi is made of target and draft as they
are sampled from, scaled and filtered. The decision is made by target_raw and draft_raw, the models'
own confidence at temperature 1 (Remark 3). A model estimates its expected loss itself: 1 - its
greatest probability, or with `log_loss` its entropy in nats (section 3.2).

At temperature 0 target and draft are one-hot, so that a drafted token is accepted unless the rule
defers and the two models' most likely tokens differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...records import Proposal, Sampling, Verdict
from ...sampling.filters import raw_probabilities
from ...sampling.randomness import RandomSource
from ...verify.step import accept_and_resample, draft_distribution, draft_raw, target_distribution

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SpeculativeCascade:
    """rule: (target, draft, target_raw, draft_raw) -> pi, one of the functions below."""

    rule: Rule
    lossless = False
    needs_raw = True

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        target = target_distribution(target_logits, sampling)  # [K + 1, V]
        draft = draft_distribution(proposal, target)  # [K, V]
        target_raw = raw_probabilities(target_logits[:-1])
        pi = self.rule(target[:-1], draft, target_raw, draft_raw(proposal, draft))
        return accept_and_resample(proposal, pi, draft, target, chance)


def chow(
    target: Tensor,
    draft: Tensor,
    target_raw: Tensor,
    draft_raw: Tensor,
    *,
    alpha: float,
    log_loss: bool = False,
) -> Tensor:
    """Defer where the draft's loss exceeds alpha, whatever the target says."""
    return _mixed(loss(draft_raw, log_loss) > alpha, target, draft)


def diff(
    target: Tensor,
    draft: Tensor,
    target_raw: Tensor,
    draft_raw: Tensor,
    *,
    alpha: float,
    log_loss: bool = False,
) -> Tensor:
    """Defer where the draft's loss exceeds the target's by more than alpha."""
    return _mixed(loss(draft_raw, log_loss) > loss(target_raw, log_loss) + alpha, target, draft)


def opt(
    target: Tensor,
    draft: Tensor,
    target_raw: Tensor,
    draft_raw: Tensor,
    *,
    alpha: float,
    log_loss: bool = False,
) -> Tensor:
    """The rule `diff` with alpha weighed by how likely deferring is to reject the draft (Lemmas 3
    and 4)."""
    cost = alpha * total_variation(target, draft)
    return _mixed(loss(draft_raw, log_loss) > loss(target_raw, log_loss) + cost, target, draft)


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
