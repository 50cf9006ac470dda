"""No drafting: with it the speculative loop is autoregressive decoding (D1)."""

from __future__ import annotations

import sys

import torch

from ...backends.cuda.rounds import RoundDraft
from ...protocols import DraftRequest
from ...records import Proposal
from .device import Nothing


class NullDrafter:
    """Proposes nothing."""

    parameters = 0
    context = sys.maxsize
    calls = 0

    def __init__(self, device: torch.device) -> None:
        self._nothing = Proposal(torch.empty(0, dtype=torch.int64, device=device))

    def reset(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        return self._nothing

    def round_draft(self) -> RoundDraft:
        return Nothing()

    def commit(self, context: list[int]) -> None:
        pass
