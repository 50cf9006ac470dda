"""A recurrence over the target's states along known answers: it drafts from every place at once.

A draft goes on from the target's state where its round began, so that the draft at a place depends
on how many tokens before it were drafted. One pass of the target over whole answers gives
the states; the cell then runs from all places at once, as deep as is asked for.
"""

from __future__ import annotations

import itertools
import time
from typing import cast

import torch
from torch import Tensor

from decoders.backends.recurrent.head import RecurrentHead
from decoders.common.sync import synchronize
from decoders.costs.passes import REPEATS
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.protocols import decoder_prefix
from decoders.sampling import race

from ..protocols import KnownAnswers
from ..replay import ChainReplay, DraftTokens
from ..stack import Clocks, DraftToken, draft_tokens

ROWS = 1024  # places whose logits are held at once


class UnrolledDrafts:
    """Called with (row, at, k), the k tokens drafted after the first `at` >= 1 of answers[row], the
    newest of which the target has not read. All places of all answers take a step together, as
    deep as is asked for."""

    def __init__(self, head: RecurrentHead, answers: KnownAnswers) -> None:
        self._head, self._heat = head, answers.temperature
        self._first = [0, *itertools.accumulate(map(len, answers.ids))]
        self._state = torch.cat(answers.states)  # in front of each token
        starts = [len(decoder_prefix(answers.target, prompt)) for prompt in answers.prompts]
        rows = [
            (token, race.key_of(seed), place)
            for ids, seed, start in zip(answers.ids, answers.seeds, starts, strict=True)
            for place, token in enumerate(ids, start + 1)  # of what is drafted after it
        ]
        columns = torch.tensor(rows, dtype=torch.int64, device=self._state.device).view(-1, 3)
        self._ids, self._keys, self._places = columns.T.contiguous().unbind(0)
        self._made: list[list[DraftToken]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[DraftToken]:
        place = self._first[row] + at - 1
        while len(self._made) < k:
            self._deepen()
        return [made[place] for made in self._made[:k]]

    @torch.inference_mode()
    def _deepen(self) -> None:
        """One token further from every place."""
        drafted, states, tokens = list[DraftToken](), list[Tensor](), list[Tensor]()
        parts = (self._state, self._ids, self._keys, self._places)
        for state, token, *clocks in zip(*(torch.split(p, ROWS) for p in parts), strict=True):
            state, logits = self._head.step(state, token)
            token, made = draft_tokens(logits, self._head.vocab, Clocks(self._heat, *clocks))
            states.append(state)
            tokens.append(token)
            drafted += made
        self._state, self._ids = torch.cat(states), torch.cat(tokens)
        self._places = self._places + 1
        self._made.append(drafted)


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
        return UnrolledDrafts(self.head, answers)
