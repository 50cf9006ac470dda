"""A recurrence over the target's states along known answers: it drafts from every place at once.

A draft goes on from the target's state where its round began, so that the draft at a place depends
on how many tokens before it were drafted. One pass of the target over whole answers gives
the states; the cell then runs from all places at once, as deep as is asked for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from decoders.backends.recurrent.head import RecurrentHead
from decoders.common.sync import synchronize
from decoders.costs.passes import REPEATS
from decoders.methods.recurrent.drafter import RecurrentDrafter

from ..chain import ChainReplay, DraftTokens
from ..protocols import KnownAnswers
from ..stack import DraftToken, draft_tokens
from ..trials import AcceptanceTrial, AcceptanceTrials, score, tried

T = TypeVar("T")

ROWS = 1024  # places whose logits are held at once


class _Unrolled(Generic[T]):
    """Called with (row, at, k), what is made of the k tokens that follow the first `at` >= 1 of
    answers[row], the newest of which the target has not read. All places of all answers take a step
    together, as deep as is asked for.

    states: of each answer [n, d], the target's final one in front of each of its n tokens.
    """

    def __init__(
        self, head: RecurrentHead, states: Sequence[Tensor], answers: Sequence[Sequence[int]]
    ) -> None:
        self._head, self._first = head, [0, *itertools.accumulate(map(len, answers))]
        self._state = torch.cat(list(states))
        ids = list(itertools.chain.from_iterable(answers))
        self._ids = torch.tensor(ids, dtype=torch.int64, device=self._state.device)
        self._made: list[list[T]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[T]:
        place = self._first[row] + at - 1
        while len(self._made) < k:
            self._deepen()
        return [made[place] for made in self._made[:k]]

    def _deepen(self) -> None:
        """One token further from every place."""
        raise NotImplementedError


class UnrolledDrafts(_Unrolled[DraftToken]):
    """The most likely tokens in turn."""

    @torch.inference_mode()
    def _deepen(self) -> None:
        drafted, states, tokens = list[DraftToken](), list[Tensor](), list[Tensor]()
        parts = (torch.split(each, ROWS) for each in (self._state, self._ids))
        for state, token in zip(*parts, strict=True):
            state, logits = self._head.step(state, token)
            token, made = draft_tokens(logits, self._head.vocab)
            states.append(state)
            tokens.append(token)
            drafted += made
        self._state, self._ids = torch.cat(states), torch.cat(tokens)
        self._made.append(drafted)


class UnrolledTrials(_Unrolled[AcceptanceTrial]):
    """The answers' own tokens: the cell goes on from the target's state where a round begins, and
    reads the true tokens."""

    def __init__(self, head: RecurrentHead, answers: KnownAnswers, temperature: float) -> None:
        super().__init__(head, answers.states, answers.ids)
        self._temperature = temperature
        self._log_p = torch.cat(answers.log_p(temperature))

    @torch.inference_mode()
    def _deepen(self) -> None:
        """What crosses into the next answer is never asked."""
        depth = len(self._made)
        read, meant = self._ids.roll(-depth), self._ids.roll(-depth - 1)
        log_p = self._log_p.roll(-depth - 1)
        states, made = [], list[AcceptanceTrial]()
        for part in torch.split(torch.arange(len(read), device=read.device), ROWS):
            state, logits = self._head.step(self._state[part], read[part])
            log_q, sure = score(logits, meant[part], self._head.vocab, self._temperature)
            states.append(state)
            made += tried(log_q, log_p[part], sure)
        self._state = torch.cat(states)
        self._made.append(made)


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
