"""The target's answers, along which arms are replayed (`KnownAnswers`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from decoders.earlier.answers import EarlierAnswers
from decoders.protocols import (
    Backend,
    Drafts,
    RequestScope,
    StateBackend,
    Strategy,
    decoder_prefix,
    enter,
)

from .protocols import KnownAnswers
from .stack import Stack, states_before

if TYPE_CHECKING:
    from decoders.engine import Engine


class Before:
    """Answers by temperature, as many of each as a server keeps by default.

    engine: its arms are collected.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[float, EarlierAnswers] = {}

    def keep(self, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> None:
        """The next answer at a temperature; it comes before all that follow."""
        self._of(temperature).add("", prompt, answer)

    @contextmanager
    def going_on(self, strategy: Strategy, temperature: float) -> Iterator[EarlierAnswers]:
        """Within the block an arm drafts from a copy of what was kept, to which answers may be
        added; it is forgotten at the block's end."""
        engine, held, answers = self._engine, self._engine.earlier, self._of(temperature).copy()
        drafter = strategy.drafter if isinstance(strategy, Drafts) else None
        engine.remember(answers)
        enter(drafter, RequestScope(answers=answers))
        try:
            yield answers
        finally:
            engine.remember(held)
            enter(drafter, RequestScope(answers=held))

    def _of(self, temperature: float) -> EarlierAnswers:
        return self._kept.setdefault(temperature, EarlierAnswers())


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
