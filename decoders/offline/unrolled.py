"""What a recurrent drafter drafts from every place of many known answers: for collection.

A draft goes on from the target's state where its round began, so that the draft at a place depends
on how many tokens before it were drafted. One pass of the target over whole answers gives
the states; the cell then runs from all places at once, as deep as is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..backends.recurrent.head import RecurrentHead
from ..protocols import Backend, DraftRequest
from ..records import Proposal
from .stack import Guess

ROWS = 1024  # places whose logits are held at once


class Unrolled:
    """states: of each answer [n, d], the target's final one in front of each of its n tokens."""

    def __init__(
        self, head: RecurrentHead, states: Sequence[Tensor], answers: Sequence[Sequence[int]]
    ) -> None:
        self._head, self._first = head, [0]
        for answer in answers:
            self._first.append(self._first[-1] + len(answer))
        self._state = torch.cat(list(states))
        ids = [token for answer in answers for token in answer]
        self._token = torch.tensor(ids, device=self._state.device)
        self._guesses: list[list[Guess]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[Guess]:
        """The likeliest k tokens in turn to follow the first `at` >= 1 of answers[row], the newest
        of which the target has not read."""
        place = self._first[row] + at - 1
        while len(self._guesses) < k:
            self._deepen()
        return [guesses[place] for guesses in self._guesses[:k]]

    @torch.inference_mode()
    def _deepen(self) -> None:
        guesses = list[Guess]()
        states, tokens = (torch.split(part, ROWS) for part in (self._state, self._token))
        after = [self._step(*pair, guesses) for pair in zip(states, tokens, strict=True)]
        self._state, self._token = (torch.cat(part) for part in zip(*after, strict=True))
        self._guesses.append(guesses)

    def _step(self, state: Tensor, token: Tensor, guesses: list[Guess]) -> tuple[Tensor, Tensor]:
        state, logits = self._head.step(state, token)
        best = logits.float().max(-1)
        sure = (best.values - logits.float().logsumexp(-1)).exp().tolist()
        token = self._head.vocab.to_target[best.indices]
        guesses += [Guess(t, c) for t, c in zip(token.tolist(), sure, strict=True)]
        return state, token


class Known:
    """A recurrent drafter whose drafts are known. drafts(context, k): the k to follow it.

    calls: steps that the drafter itself would have made.
    """

    parameters = 0

    def __init__(self, drafts: Callable[[list[int], int], list[int]], target: Backend) -> None:
        self._drafts, self._device, self.context = drafts, target.device, target.context
        self.calls = 0

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        ids = self._drafts(context, asked.k)
        self.calls += len(ids)
        return Proposal(torch.tensor(ids, dtype=torch.int64, device=self._device))

    def commit(self, context: list[int]) -> None:
        """Nothing is held."""
