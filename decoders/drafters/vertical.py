"""Vertical cascade: a drafter that contains the speculative loop (D14; Chen et al., "Cascade
Speculative Drafting", section 3.1).

A middle model reviews what an inner drafter proposes, round after round, until enough tokens are
drafted; the target reviews those. As `loop.py` uses drafters, take this class from here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..chance import Chance
from ..lengths import FixedLength
from ..loop import Clock, Method, play, settle
from ..protocols import Backend, Drafter, DraftLength, work
from ..records import Proposal, Sampling
from ..sampling import raw_probabilities
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
        self.method = Method("", inner, Lenient(lenience), length)
        alone = Method("", NullDrafter(reviewer.device), Lenient(), FixedLength(0))
        self._later = alone if writes_on else self.method
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
        self.method.length.reset()

    def propose(
        self,
        context: list[int],
        k: int,
        sampling: Sampling,
        chance: Chance,
        min_confidence: float = 0.0,
        needs_raw: bool = False,
    ) -> Proposal:
        """k tokens. Reviewed as they are, none is left out for `min_confidence`."""
        return self.draft(context, k, k, sampling, chance, needs_raw)

    @torch.inference_mode()
    def draft(
        self,
        context: list[int],
        least: int,
        most: int,
        sampling: Sampling,
        chance: Chance,
        needs_raw: bool = False,
    ) -> Proposal:
        """Review after review until `least` tokens stand, and never more than `most`."""
        line, clock = list(context), Clock(self.reviewer.device)
        laws: list[Tensor] = []
        raws: list[Tensor] = []
        method = self.method
        while len(line) < len(context) + least:
            room = len(context) + most - len(line)
            turn = play(self.reviewer, method, line, room, sampling, chance, clock)
            self._reviews += 1
            line += turn.verdict.ids
            if turn.verdict.law is not None:
                laws.append(turn.verdict.law)
            if needs_raw:
                raws.append(raw_probabilities(turn.logits[: len(turn.verdict.ids)]))
            settle(self.reviewer, method, line, turn)
            method = self._later
        ids = torch.tensor(line[len(context) :], device=self.reviewer.device)
        return Proposal(ids, torch.cat(laws) if laws else None, torch.cat(raws) if raws else None)

    def commit(self, context: list[int]) -> None:
        self._reviews += roll_back(self.reviewer, context, self.reviewer.extend)
        self.inner.commit(context)
