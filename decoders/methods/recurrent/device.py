"""A recurrent cell inside a recorded round."""

from __future__ import annotations

from torch import Tensor

from ...backends.cuda.recurrent_recorded import RecordedSteps
from ...backends.cuda.rounds import Line
from ..device import Chain


def cell(steps: RecordedSteps, states: Tensor, parameters: int) -> Chain:
    """A recurrent drafter's. states: [context, d], the target's final ones."""

    def make(line: Line, k: int, unread: int) -> Tensor:
        return steps.drafted(states.index_select(0, line.start - 1), line.newest(1), k)

    return Chain(make, parameters)
