"""Several answers of servers at once: each waits in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WAIT_S = 0.2  # of a step in which nothing ends and nothing comes


@dataclass
class Line:
    """Where one answer is written, as `continuous_batching.EngineSlot`."""

    engine: Any
    at_work: threading.Thread | None = None
    ended: bool = False  # but not taken off yet
    error: BaseException | None = None


class Threads:
    """As `continuous_batching.BatchEngine`, for an engine that several threads may use."""

    def __init__(self, engine: Any, n: int) -> None:
        self.slots = [Line(engine) for _ in range(n)]
        self._news = threading.Event()

    @property
    def running(self) -> int:
        return sum(slot.at_work is not None for slot in self.slots)

    def free(self, prompt_ids: Sequence[int] = (), user: str | None = "") -> Line | None:
        return next((slot for slot in self.slots if slot.at_work is None), None)

    def begin(self, slot: Line, answer: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                answer(slot.engine)
            except BaseException as error:  # raised in `step`
                slot.error = error
            slot.ended = True
            self._news.set()

        slot.ended = False
        slot.at_work = threading.Thread(target=run, daemon=True)
        slot.at_work.start()

    def step(self) -> None:
        self._news.wait(WAIT_S)
        self._news.clear()
        for slot in self.slots:
            if slot.at_work is not None and slot.ended:
                error, slot.at_work, slot.error = slot.error, None, None
                if error is not None:
                    raise error

    def wake(self) -> None:
        self._news.set()

    def stop(self, slot: Line, error: Exception) -> None:
        """Nothing: an answer looks for itself, whenever text comes."""

    def close(self) -> None:
        """What servers still write is not waited for."""
        for slot in self.slots:
            slot.at_work = None
