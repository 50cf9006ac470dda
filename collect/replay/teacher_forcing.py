"""Answers of the target that are read again, for all that drafters may ask about them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from decoders.protocols import Backend, StateBackend, decoder_prefix

from .stack import Stack, states_before
from .trials import after, scores


class TeacherForcing:
    """What the target made of each token of its answers (`KnownAnswers`).

    stack: the target's, None where it is read one answer at a time.
    states: as in KnownAnswers, where they are known already.
    """

    def __init__(
        self,
        target: Backend,
        stack: Stack | None,
        prompts: list[list[int]],
        answers: list[list[int]],
        states: list[Tensor] | None = None,
    ) -> None:
        self.target, self.prompts, self.ids = target, prompts, answers
        self._stack, self._states = stack, states
        self._log_p: dict[float, list[Tensor]] = {}
        self.kept: dict[Hashable, Any] = {}

    @property
    def batched(self) -> bool:
        return self._stack is not None

    @cached_property
    def states(self) -> list[Tensor]:
        if self._states is not None:
            return self._states
        if self._stack is not None:
            return states_before(self._stack, self.prompts, self.ids)
        assert isinstance(self.target, StateBackend)
        states = []
        for prompt, answer in zip(self.prompts, self.ids, strict=True):
            self._read(prompt, answer)
            end = len(decoder_prefix(self.target, prompt)) - 1 + len(answer)
            states.append(self.target.final_states(end - len(answer), end).clone())
        return states

    def log_p(self, temperature: float) -> list[Tensor]:
        if temperature not in self._log_p:
            self._log_p[temperature] = self._scored(temperature)
        return self._log_p[temperature]

    def forget_scores(self) -> None:
        """Scores are as wide as the vocabulary; the states that they are made of stay."""
        self._log_p.clear()

    def _scored(self, temperature: float) -> list[Tensor]:
        pairs = zip(self.prompts, self.ids, strict=True)
        if self._stack is not None:
            scored = scores(self._stack, self.states, self.ids, temperature)
            return [log_q for log_q, _ in scored]
        return [after(self._read(*pair), pair[1], None, temperature)[0] for pair in pairs]

    @torch.inference_mode()
    def _read(self, prompt: list[int], answer: list[int]) -> Tensor:
        """[n - 1, V] logits for all tokens but the first."""
        self.target.prefill(prompt)
        if len(answer) < 2:
            return torch.empty(0, self.target.vocab_size, device=self.target.device)
        return self.target.extend(torch.tensor(answer[:-1], device=self.target.device))
