"""Several answers of servers at once: each waits in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WAIT_S = 0.02  # of a step in which nothing ends


@dataclass
class Line:
    """Room for one answer, as `together.Seat`."""

    engine: Any
    at_work: threading.Thread | None = None
    error: BaseException | None = None


class Threads:
    """As `together.Room`, for an engine that several threads may use."""

    def __init__(self, engine: Any, n: int) -> None:
        self.seats = [Line(engine) for _ in range(n)]
        self._ended = threading.Event()

    @property
    def running(self) -> int:
        return sum(seat.at_work is not None for seat in self.seats)

    def free(self, prompt_ids: Sequence[int] = ()) -> Line | None:
        return next((seat for seat in self.seats if seat.at_work is None), None)

    def begin(self, seat: Line, answer: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                answer(seat.engine)
            except BaseException as error:  # raised in `step`
                seat.error = error
            self._ended.set()

        seat.at_work = threading.Thread(target=run, daemon=True)
        seat.at_work.start()

    def step(self) -> None:
        self._ended.wait(WAIT_S)
        self._ended.clear()
        for seat in self.seats:
            if seat.at_work is not None and not seat.at_work.is_alive():
                error, seat.at_work, seat.error = seat.error, None, None
                if error is not None:
                    raise error

    def stop(self, seat: Line, error: Exception) -> None:
        """Nothing: an answer looks for itself, whenever text comes."""

    def close(self) -> None:
        """What servers still write is not waited for."""
        for seat in self.seats:
            seat.at_work = None
