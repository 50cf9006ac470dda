"""What a recurrent drafter drafts from every place of many known answers: for collection.

A draft goes on from the target's state where its round began, so that the draft at a place depends
on how many tokens before it were drafted. One pass of the target over whole answers gives
the states; the cell then runs from all places at once, as deep as is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backends.recurrent.head import RecurrentHead
from ..protocols import KnownAnswers
from .stack import DraftToken
from .trials import AcceptanceTrial, score, tried

ROWS = 1024  # places whose logits are held at once


class UnrolledDrafts:
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
        self._drafted: list[list[DraftToken]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[DraftToken]:
        """The most likely k tokens in turn to follow the first `at` >= 1 of answers[row], the
        newest of which the target has not read."""
        place = self._first[row] + at - 1
        while len(self._drafted) < k:
            self._deepen()
        return [drafted[place] for drafted in self._drafted[:k]]

    @torch.inference_mode()
    def _deepen(self) -> None:
        drafted = list[DraftToken]()
        states, tokens = (torch.split(part, ROWS) for part in (self._state, self._token))
        after = [self._step(*pair, drafted) for pair in zip(states, tokens, strict=True)]
        self._state, self._token = (torch.cat(part) for part in zip(*after, strict=True))
        self._drafted.append(drafted)

    def _step(
        self, state: Tensor, token: Tensor, drafted: list[DraftToken]
    ) -> tuple[Tensor, Tensor]:
        state, logits = self._head.step(state, token)
        best = logits.float().max(-1)
        sure = (best.values - logits.float().logsumexp(-1)).exp().tolist()
        token = self._head.vocab.to_target[best.indices]
        drafted += [DraftToken(t, c) for t, c in zip(token.tolist(), sure, strict=True)]
        return state, token


class UnrolledTrials:
    """What a recurrent drafter makes of the answers' own tokens from every place on: each draft
    goes on from the target's state where its round begins, and the cell reads the true tokens.

    All places of all answers take a step together, as deep as is asked for.
    """

    def __init__(self, head: RecurrentHead, answers: KnownAnswers, temperature: float) -> None:
        self._head, self._temperature, self._first = head, temperature, [0]
        for answer in answers.ids:
            self._first.append(self._first[-1] + len(answer))
        self._state = torch.cat(answers.states)
        ids = [token for answer in answers.ids for token in answer]
        self._ids = torch.tensor(ids, dtype=torch.int64, device=self._state.device)
        self._log_p = torch.cat(answers.log_p(temperature))
        self._tried: list[list[AcceptanceTrial]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[AcceptanceTrial]:
        place = self._first[row] + at - 1
        while len(self._tried) < k:
            self._deepen()
        return [tried[place] for tried in self._tried[:k]]

    @torch.inference_mode()
    def _deepen(self) -> None:
        """One token further from every place; what crosses into the next answer is never asked."""
        depth = len(self._tried)
        read, meant = self._ids.roll(-depth), self._ids.roll(-depth - 1)
        log_p = self._log_p.roll(-depth - 1)
        states, made = [], list[AcceptanceTrial]()
        for part in torch.split(torch.arange(len(read), device=read.device), ROWS):
            state, logits = self._head.step(self._state[part], read[part])
            log_q, sure = score(logits, meant[part], self._head.vocab, self._temperature)
            states.append(state)
            made += tried(log_q, log_p[part], sure)
        self._state = torch.cat(states)
        self._tried.append(made)
