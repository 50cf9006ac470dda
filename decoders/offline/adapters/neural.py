"""A small model of its own along known answers."""

from __future__ import annotations

import torch
from torch import Tensor

from ...backends.native import LlamaBackend
from ...drafters import NeuralDrafter
from ...drafters.catch_up import LATER
from ...protocols import KnownAnswers
from ..stack import Stack
from ..trials import AcceptanceTrials, after, trials_along
from .stacked import StackedReplay


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
