"""The target's answers, along which arms are replayed (`KnownAnswers`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoders.protocols import Backend, StateBackend, decoder_prefix

from .protocols import KnownAnswers
from .stack import Stack, states_before


class Draws(NamedTuple):
    """How answers to prompts are written: greedily, or sampled at a temperature (no filters), each
    by a seed of its own."""

    temperature: float = 0.0
    seeds: Sequence[int] = ()

    def of(self, answers: Sequence[Any]) -> list[int]:
        """The seed of each; 0 where nothing is drawn."""
        seeds = list(self.seeds) if self.temperature else [0] * len(answers)
        if len(seeds) != len(answers):
            raise ValueError(f"{len(seeds)} seeds for {len(answers)} sampled answers")
        return seeds


class TeacherForcing:
    """The target's answers, and its states in front of each of their tokens.

    stack: the target's, None where it is read one answer at a time.
    draws: how they were written.
    states: as in KnownAnswers, where they are known already.
    """

    def __init__(
        self,
        target: Backend,
        stack: Stack | None,
        prompts: list[list[int]],
        answers: list[list[int]],
        draws: Draws = Draws(),
        states: list[Tensor] | None = None,
    ) -> None:
        self.target, self.prompts, self.ids = target, prompts, answers
        self.temperature, self.seeds = draws.temperature, draws.of(answers)
        self._stack, self._states = stack, states
        self.kept: dict[Hashable, Any] = {}

    def same(self, other: TeacherForcing) -> bool:
        """Whether these are the same answers, written in the same way."""
        return (self.prompts, self.ids, self.temperature, self.seeds) == (
            other.prompts,
            other.ids,
            other.temperature,
            other.seeds,
        )

    @property
    def batched(self) -> bool:
        return self._stack is not None

    @cached_property
    def states(self) -> list[Tensor]:
        if self._states is not None:
            return self._states
        if self._stack is not None:
            return states_before(self._stack, self.prompts, self.ids)
        return [self._read(*pair) for pair in zip(self.prompts, self.ids, strict=True)]

    @torch.inference_mode()
    def _read(self, prompt: list[int], answer: list[int]) -> Tensor:
        """[n, d] in front of each of its n tokens."""
        assert isinstance(self.target, StateBackend)
        self.target.prefill(prompt)
        if len(answer) > 1:
            self.target.extend(torch.tensor(answer[:-1], device=self.target.device))
        end = len(decoder_prefix(self.target, prompt)) - 1 + len(answer)
        return self.target.final_states(end - len(answer), end).clone()


class SomeAnswers:
    """Rows of known answers, all of which are read together all the same."""

    def __init__(self, known: KnownAnswers, rows: Sequence[int]) -> None:
        self._known, self._rows = known, rows
        self.prompts, self.ids = [known.prompts[i] for i in rows], [known.ids[i] for i in rows]
        self.temperature, self.seeds = known.temperature, [known.seeds[i] for i in rows]
        self.kept: dict[Hashable, Any] = {}

    @property
    def target(self) -> Backend:
        return self._known.target

    @property
    def batched(self) -> bool:
        return self._known.batched

    @property
    def states(self) -> list[Tensor]:
        states = self._known.states
        return [states[row] for row in self._rows]
