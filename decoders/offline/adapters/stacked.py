"""Drafters that are a stack of layers: an answer is one pass, and many are read together."""

from __future__ import annotations

from ...protocols import Backend, KnownAnswers
from ...records import Written
from ..chain import ChainReplay, DraftTokens
from ..stack import Stack, score, states_before
from ..trials import AcceptanceTrials, scores, trials_along
from ..writer import write


class StackedReplay(ChainReplay):
    """stack: None where the drafter's model is not a native one."""

    @property
    def stack(self) -> Stack | None:
        raise NotImplementedError

    def write(
        self,
        target: Backend,
        prompts: list[list[int]],
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Written | None:
        stack = self.stack
        return None if stack is None else write(stack, prompts, max_new_tokens, eos_ids)

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        stack = self.stack
        if stack is None:
            return None
        scored = score(stack, answers.prompts, answers.ids)
        return lambda row, at, k: scored[row][at : at + k]

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials | None:
        stack = self.stack
        if stack is None:
            return None
        states = states_before(stack, answers.prompts, answers.ids)
        return trials_along(scores(stack, states, answers.ids, temperature), answers, temperature)
