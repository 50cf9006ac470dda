"""No drafting: with it the speculative loop is autoregressive decoding."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ...device_rounds import DeviceSequence, Shape
from ...protocols import DraftRequest
from ...records import Proposal


class NullDrafter:
    """Proposes nothing; in recorded rounds as well."""

    parameters = calls = work = 0
    context = sys.maxsize

    def __init__(self, device: torch.device) -> None:
        self._nothing = Proposal(torch.empty(0, dtype=torch.int64, device=device))

    def reset(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        return self._nothing

    def commit(self, context: list[int]) -> None:
        pass

    # -- as a RoundDraft ---------------------------------------------------------------------------

    def round_draft(self) -> NullDrafter:
        return self

    def first(self) -> list[Shape]:
        return [(0,)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        return (0,)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: DeviceSequence) -> tuple[Tensor, Tensor | None]:
        return line.ids[:0], None

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        pass
