"""A recurrence over the target's states along known answers: it drafts from every place at once."""

from __future__ import annotations

import time
from typing import cast

import torch

from decoders.backends.recurrent.head import RecurrentHead
from decoders.common.sync import synchronize
from decoders.costs.passes import REPEATS
from decoders.methods.recurrent.drafter import RecurrentDrafter

from ..chain import ChainReplay, DraftTokens
from ..protocols import KnownAnswers
from ..trials import AcceptanceTrials
from ..unrolled import UnrolledDrafts, UnrolledTrials


class RecurrentReplay(ChainReplay):
    drafter: RecurrentDrafter
    later = None

    @property
    def head(self) -> RecurrentHead:
        return cast(RecurrentHead, self.drafter.head)

    @torch.inference_mode()
    def steps(self, answers: int) -> float:
        """A step is taken for all answers together; timed."""
        head = self.head

        def seconds(rows: int) -> float:
            state = torch.zeros(rows, head.config.hidden, dtype=head.dtype, device=head.device)
            token = torch.zeros(rows, dtype=torch.int64, device=head.device)
            times = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                head.step(state, token)
                synchronize(head.device)
                times.append(time.perf_counter() - started)
            return min(times)

        return max(1.0, seconds(answers) / seconds(1))

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        if not answers.batched:
            return None
        return UnrolledDrafts(self.head, answers.states, answers.ids)

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials:
        return UnrolledTrials(self.head, answers, temperature)
