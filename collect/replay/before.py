"""What earlier answers a collection's arms draft from: at every temperature the target's own to the
queries before, in the order in which they were collected, as if one server had answered them one
after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from decoders.methods.suffix.earlier import EarlierAnswers
from decoders.protocols import Backend
from decoders.requests.context import Seat

from .protocols import KnownAnswers


class Before:
    """Answers by temperature, as many of each as a server keeps by default.

    seat: of the target whose arms are collected.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._kept: dict[float, EarlierAnswers] = {}

    def keep(self, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> None:
        """The next answer at a temperature; it comes before all that follow."""
        self._of(temperature).add("", prompt, answer)

    @contextmanager
    def going_on(self, temperature: float) -> Iterator[Seat]:
        """Within the block arms draft from what was kept, and from what the seat is told to keep,
        which is forgotten at its end."""
        seat = self._seat
        held = seat.answers, seat.user
        seat.answers, seat.user = self._of(temperature).copy(), ""
        try:
            yield seat
        finally:
            seat.answers, seat.user = held

    def _of(self, temperature: float) -> EarlierAnswers:
        return self._kept.setdefault(temperature, EarlierAnswers())


class SomeAnswers:
    """Rows of known answers, all of which are read together all the same."""

    def __init__(self, known: KnownAnswers, rows: Sequence[int]) -> None:
        self._known, self._rows = known, rows
        self.prompts, self.ids = [known.prompts[i] for i in rows], [known.ids[i] for i in rows]
        self.kept: dict[Hashable, Any] = {}

    @property
    def target(self) -> Backend:
        return self._known.target

    @property
    def batched(self) -> bool:
        return self._known.batched

    @property
    def states(self) -> list[Tensor]:
        return self._of_rows(self._known.states)

    def log_p(self, temperature: float) -> list[Tensor]:
        return self._of_rows(self._known.log_p(temperature))

    def _of_rows(self, found: list[Tensor]) -> list[Tensor]:
        return [found[row] for row in self._rows]
