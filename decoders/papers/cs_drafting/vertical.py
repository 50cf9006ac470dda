"""Vertical cascade: a drafter that contains the speculative loop (Chen et al., "Cascade
Speculative Drafting", section 3.1).

A middle model verifies what an inner drafter proposes, round after round, until enough tokens are
drafted; the target verifies those.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...lengths import FixedLength
from ...loop import SpeculativeDecoding, commit, run_round
from ...methods.chain import roll_back
from ...methods.plain.drafter import NullDrafter
from ...protocols import Backend, Drafter, DraftLength, DraftRequest, RequestScope, enter, work
from ...records import Proposal
from ...requests.reading import PromptReader
from ...sampling.filters import raw_probabilities
from ...tally import Clock
from ...verify import Coupled
from ..rules.lossy import Lenient


class VerticalDrafter:
    """Drafts what the middle model accepts of its inner drafter's proposals.

    verifier_model: the middle model, in the target's ids.
    inner: what drafts for it.
    length: how much at a time.
    lenience: of its verification.
    writes_on: after the first verification of a proposal the middle model goes on alone, else more
        is drafted for it. That is the hierarchy of three models (Tulsian et al., "Fast
        Inference from Transformers via Speculative Decoding", Algorithm 3) but for two points: a
        rejected token is replaced from the residual, so that the proposal's distribution is the
        middle model's own, and the token that verification itself adds is used.
    """

    def __init__(
        self,
        verifier_model: Backend,
        inner: Drafter,
        length: DraftLength,
        lenience: float = 1.0,
        writes_on: bool = False,
    ) -> None:
        self.verifier_model, self.inner = verifier_model, inner
        self.parameters = verifier_model.parameters + inner.parameters
        self.lenience = lenience
        self.context = min(verifier_model.context, inner.context)
        self.strategy = SpeculativeDecoding("", inner, Lenient(lenience), length)
        alone = SpeculativeDecoding(
            "", NullDrafter(verifier_model.device), Lenient(), FixedLength(0)
        )
        self._later = alone if writes_on else self.strategy
        self._verifications = 0
        self._prompts = PromptReader(verifier_model)
        self._scope = RequestScope()

    @property
    def calls(self) -> int:
        return self._verifications + self.inner.calls

    @property
    def work(self) -> int:
        return self._verifications * self.verifier_model.parameters + work(self.inner)

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope
        enter(self.inner, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        self._prompts.read(prompt_ids, self._scope)
        self._verifications = 1
        self.inner.reset(prompt_ids)
        self.strategy.length.reset()

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        """k tokens. They have been verified, so none is left out for `min_confidence`."""
        return self.draft(context, asked.k, asked)

    @torch.inference_mode()
    def draft(self, context: list[int], least: int, asked: DraftRequest) -> Proposal:
        """Round after round until `least` tokens are accepted, and never more than `asked.k`."""
        line, clock = list(context), Clock(self.verifier_model.device)
        distributions: list[Tensor] = []
        raws: list[Tensor] = []
        strategy = self._strategy(self.strategy, asked)
        while len(line) < len(context) + least:
            room = len(context) + asked.k - len(line)
            made = run_round(
                self.verifier_model, strategy, line, room, asked.sampling, asked.chance, clock
            )
            self._verifications += 1
            line += made.verdict.ids
            if made.verdict.distribution is not None:
                distributions.append(made.verdict.distribution)
            if asked.needs_raw:
                raws.append(raw_probabilities(made.logits[: len(made.verdict.ids)]))
            commit(self.verifier_model, strategy, line, made)
            strategy = self._strategy(self._later, asked)
        ids = torch.tensor(line[len(context) :], device=self.verifier_model.device)
        return Proposal(
            ids,
            torch.cat(distributions) if distributions else None,
            torch.cat(raws) if raws else None,
        )

    def _strategy(self, strategy: SpeculativeDecoding, asked: DraftRequest) -> SpeculativeDecoding:
        """Strictly by the middle model's own tokens, where the target goes by its own."""
        strict = self.lenience == 1 and not asked.needs_probs
        return replace(strategy, verifier=Coupled()) if strict else strategy

    def commit(self, context: list[int]) -> None:
        self._verifications += roll_back(self.verifier_model, context, self.verifier_model.extend)
        self._prompts.holds(context)
        self.inner.commit(context)
