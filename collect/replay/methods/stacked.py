"""Drafters that are a stack of layers, a small model or the target's own first layers with an
adapter: an answer is one pass, and many are read together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from decoders.backends.exit_adapter import AdapterHead
from decoders.backends.native import LlamaBackend
from decoders.methods.chain import LATER
from decoders.methods.early_exit.drafter import EarlyExitDrafter
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.protocols import Backend

from ..chain import ChainReplay, DraftTokens
from ..protocols import KnownAnswers
from ..records import Written
from ..stack import Stack, score, states_before
from ..trials import AcceptanceTrials, after, scores, trials_along
from ..writer import write

T = TypeVar("T")


class StackedReplay(ChainReplay):
    """stack: None where the drafter's model is not a native one.
    parts: the objects that it is made of, which arms may share.
    """

    @property
    def stack(self) -> Stack | None:
        raise NotImplementedError

    @property
    def parts(self) -> tuple[object, ...]:
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
        scored = self._once(answers, "greedy", lambda: score(stack, answers.prompts, answers.ids))
        return lambda row, at, k: scored[row][at : at + k]

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials | None:
        stack = self.stack
        if stack is None:
            return None

        def made() -> list[tuple[Tensor, Tensor]]:
            states = states_before(stack, answers.prompts, answers.ids)
            return scores(stack, states, answers.ids, temperature)

        return trials_along(self._once(answers, temperature, made), answers, temperature)

    def _once(self, answers: KnownAnswers, what: Hashable, make: Callable[[], T]) -> T:
        """The replays of these answers and these parts, computed once."""
        key = what, *map(id, self.parts)
        if key not in answers.kept:
            answers.kept[key] = self.parts, make()  # who has the parts keeps their ids from others
        made: T = answers.kept[key][1]
        return made


class NeuralReplay(StackedReplay):
    drafter: NeuralDrafter
    later = LATER

    @property
    def stack(self) -> Stack | None:
        model = self.drafter.backend
        return Stack.of_backend(model, self.drafter.vocab) if type(model) is LlamaBackend else None

    @property
    def parts(self) -> tuple[object, ...]:
        model = self.drafter.backend
        return (model.weights if isinstance(model, LlamaBackend) else model), self.drafter.vocab

    def trials(self, answers: KnownAnswers, temperature: float) -> AcceptanceTrials | None:
        if self.stack is not None:
            return super().trials(answers, temperature)
        pairs = zip(answers.prompts, answers.ids, strict=True)
        return trials_along([self._read(*p, temperature) for p in pairs], answers, temperature)

    @torch.inference_mode()
    def _read(
        self, prompt: list[int], answer: list[int], temperature: float
    ) -> tuple[Tensor, Tensor]:
        """One answer, by a model of any backend."""
        model = self.drafter
        model.reset(prompt)
        device = model.backend.device
        if len(answer) < 2:
            logits = torch.empty(0, 1, device=device)
        else:
            logits = model.logits(torch.tensor(answer[:-1], device=device))
        return after(logits, answer, model.vocab, temperature)


class EarlyExitReplay(StackedReplay):
    drafter: EarlyExitDrafter

    @property
    def stack(self) -> Stack | None:
        head = self.drafter.head
        return Stack.of_exit(head) if type(head) is AdapterHead else None

    @property
    def parts(self) -> tuple[object, ...]:
        return (self.drafter.head,)
