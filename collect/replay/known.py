"""The target's answers, along which arms are replayed (`KnownAnswers`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def teacher_forced(
    target: Backend,
    stack: Stack | None,
    prompts: list[list[int]],
    answers: list[list[int]],
    draws: Draws = Draws(),
    states: list[Tensor] | None = None,
) -> KnownAnswers:
    """Answers of the target, along which it is led where its states are asked for.

    stack: the target's, None where it is read one answer at a time.
    draws: how they were written.
    states: as in KnownAnswers, where they are known already.
    """

    def read() -> list[Tensor]:
        if states is not None:
            return states
        if stack is not None:
            return states_before(stack, prompts, answers)
        return [_read(target, *pair) for pair in zip(prompts, answers, strict=True)]

    how = draws.temperature, draws.of(answers), stack is not None
    return KnownAnswers(target, prompts, answers, *how, read)


@torch.inference_mode()
def _read(target: Backend, prompt: list[int], answer: list[int]) -> Tensor:
    """[n, d] in front of each of its n tokens."""
    assert isinstance(target, StateBackend)
    target.prefill(prompt)
    if len(answer) > 1:
        target.extend(torch.tensor(answer[:-1], device=target.device))
    end = len(decoder_prefix(target, prompt)) - 1 + len(answer)
    return target.final_states(end - len(answer), end).clone()
