"""Vertical cascade: a drafter that contains the speculative loop (D14; Chen et al., "Cascade
Speculative Drafting", section 3.1).

A middle model reviews what an inner drafter proposes, round after round, until enough tokens are
drafted; the target reviews those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..lengths import FixedLength
from ..loop import SpeculativeDecoding, commit, run_round
from ..protocols import Backend, Drafter, DraftLength, DraftRequest, work
from ..records import Proposal
from ..sampling import raw_probabilities
from ..tally import Clock
from ..verify import Lenient
from .catch_up import roll_back
from .null import NullDrafter


class VerticalDrafter:
    """reviewer: the middle model, in the target's ids. inner, length: what drafts for it, and how
    much at a time. lenience: of its review.

    writes_on: after the first review of a proposal the reviewer goes on alone, else more is drafted
    for it. That is the hierarchy of three models (D13; Tulsian et al., "Fast Inference from
    Transformers via Speculative Decoding", Algorithm 3), except that a rejected token is replaced
    from the residual, so that the proposal's law is the reviewer's own, and that the token which
    the review itself adds is used.
    """

    def __init__(
        self,
        reviewer: Backend,
        inner: Drafter,
        length: DraftLength,
        lenience: float = 1.0,
        writes_on: bool = False,
    ) -> None:
        self.reviewer, self.inner = reviewer, inner
        self.parameters = reviewer.parameters + inner.parameters
        self.context = min(reviewer.context, inner.context)
        self.how = SpeculativeDecoding("", inner, Lenient(lenience), length)
        alone = SpeculativeDecoding("", NullDrafter(reviewer.device), Lenient(), FixedLength(0))
        self._later = alone if writes_on else self.how
        self._reviews = 0

    @property
    def calls(self) -> int:
        return self._reviews + self.inner.calls

    @property
    def work(self) -> int:
        return self._reviews * self.reviewer.parameters + work(self.inner)

    def reset(self, prompt_ids: list[int]) -> None:
        self.reviewer.prefill(prompt_ids)
        self._reviews = 1
        self.inner.reset(prompt_ids)
        self.how.length.reset()

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        """k tokens. Reviewed as they are, none is left out for `min_confidence`."""
        return self.draft(context, asked.k, asked)

    @torch.inference_mode()
    def draft(self, context: list[int], least: int, asked: DraftRequest) -> Proposal:
        """Round after round until `least` tokens are accepted, and never more than `asked.k`."""
        line, clock = list(context), Clock(self.reviewer.device)
        laws: list[Tensor] = []
        raws: list[Tensor] = []
        how = self.how
        while len(line) < len(context) + least:
            room = len(context) + asked.k - len(line)
            made = run_round(self.reviewer, how, line, room, asked.sampling, asked.chance, clock)
            self._reviews += 1
            line += made.verdict.ids
            if made.verdict.law is not None:
                laws.append(made.verdict.law)
            if asked.needs_raw:
                raws.append(raw_probabilities(made.logits[: len(made.verdict.ids)]))
            commit(self.reviewer, how, line, made)
            how = self._later
        ids = torch.tensor(line[len(context) :], device=self.reviewer.device)
        return Proposal(ids, torch.cat(laws) if laws else None, torch.cat(raws) if raws else None)

    def commit(self, context: list[int]) -> None:
        self._reviews += roll_back(self.reviewer, context, self.reviewer.extend)
        self.inner.commit(context)
