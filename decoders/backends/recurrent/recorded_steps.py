"""A recurrent drafter's steps recorded once and replayed, as the passes of recorded.py.

Here nothing depends on the sequence's length at all: a state and a few tokens go in.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ...device_rounds import WIDEST
from ...sampling.draft_vocab import DraftVocab
from ..cuda.recorded import Recorder, Run
from .cell import CellConfig


class Steps(Protocol):
    """A head whose steps can be recorded: RecurrentHead, or FusedHead (head.py)."""

    config: CellConfig
    vocab: DraftVocab
    device: torch.device
    dtype: torch.dtype

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]: ...

    def advance(self, state: Tensor, token: Tensor) -> Tensor: ...


class RecordedSteps:
    """One head's steps, each kind recorded when it is first asked for. What `record` is given is
    repeatable, as there."""

    def __init__(self, head: Steps, record: Recorder) -> None:
        self._head, self._record = head, record
        size, device = head.config.hidden, head.device
        self._state = torch.zeros(1, size, dtype=head.dtype, device=device)
        self._ids = torch.zeros(WIDEST, dtype=torch.int64, device=device)
        self._replays: dict[tuple[int, int], Run] = {}

    def draft(self, state: Tensor, ids: Tensor, k: int) -> Tensor:
        """From `state` [1, d], read `ids` [U], 1 <= U <= WIDEST, then draft k >= 1 tokens greedily;
        target ids [k], as one recording."""
        u = len(ids)

        def run() -> Tensor:
            return self.drafted(self._state, self._ids[:u], k)

        return self._replay((u, k), run, state, ids)

    def drafted(self, state: Tensor, ids: Tensor, k: int) -> Tensor:
        """Draft within a recording."""
        head = self._head
        for token in ids[:-1].unsqueeze(1):
            state = head.advance(state, token)
        token, drafted = ids[-1:], list[Tensor]()
        while len(drafted) < k:
            state, logits = head.step(state, token)
            token = head.vocab.to_target[logits.argmax(-1)]
            drafted.append(token)
        return torch.cat(drafted)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Step one sequence, as RecurrentHead does."""

        def run() -> Tensor:
            return torch.cat(self._head.step(self._state, self._ids[:1]), -1)

        size = self._state.shape[1]
        made = self._replay((1, 0), run, state, token)  # [1, d + N]
        return made[:, :size], made[:, size:]

    def _replay(self, key: tuple[int, int], run: Run, state: Tensor, ids: Tensor) -> Tensor:
        self._state.copy_(state)
        self._ids[: len(ids)].copy_(ids)
        if key not in self._replays:
            self._replays[key] = self._record(run)
        return self._replays[key]().clone()
