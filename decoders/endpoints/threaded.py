"""Several answers of servers at once: each waits in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

WAIT_S = 0.2  # of a step in which nothing ends and nothing comes


class Line:
    """A thread in which one answer is written, as in `continuous_batching.EngineSlot`.

    Its thread is kept from one answer to the next: in a new one the first tensor takes
    milliseconds.

    news: set when an answer has ended.
    """

    def __init__(self, engine: Any, news: threading.Event) -> None:
        self.engine = engine
        self.busy = self.ended = False  # ended, but not taken off yet
        self.error: BaseException | None = None
        self._news = news
        self._work: SimpleQueue[Callable[[Any], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, answer: Callable[[Any], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, daemon=True)
            thread.start()  # which may fail, where the system allows no more
            self._thread = thread
        self.busy, self.ended, self.error = True, False, None
        self._work.put(answer)

    def close(self) -> None:
        """Its thread ends after the answer that it writes, which is not waited for."""
        self.busy = False
        self._work.put(None)

    def _run(self) -> None:
        while (answer := self._work.get()) is not None:
            try:
                answer(self.engine)
            except BaseException as error:  # raised in `step`
                self.error = error
            del answer  # or what it holds would stay until the next
            self.ended = True
            self._news.set()


class Threads:
    """A batch engine for an engine that several threads may use."""

    def __init__(self, engine: Any, n: int) -> None:
        self._news = threading.Event()
        self.slots = [Line(engine, self._news) for _ in range(n)]

    @property
    def running(self) -> int:
        return sum(slot.busy for slot in self.slots)

    def free(self, prompt_ids: Sequence[int] = (), user: str | None = "") -> Line | None:
        return next((slot for slot in self.slots if not slot.busy), None)

    def begin(self, slot: Line, answer: Callable[[Any], None]) -> None:
        slot.begin(answer)

    def step(self) -> None:
        self._news.wait(WAIT_S)
        self._news.clear()
        for slot in self.slots:
            if slot.busy and slot.ended:
                slot.busy = False
                if slot.error is not None:
                    raise slot.error

    def wake(self) -> None:
        self._news.set()

    def stop(self, slot: Line, error: Exception) -> None:
        """Nothing: an answer looks for itself, whenever text comes."""

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
