"""A circuit breaker: a dead server is left alone for a while, longer each time.

Nygard, *Release It!* (2007), chapter 5. After a failure nobody asks until the pause is over; then
one caller tries, and only if that succeeds do the others ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Breaker:
    """A circuit breaker of one server; may be used from several threads.

    first_s, most_s: the pause after the first failure, which doubles with each one in a row, and
        the longest pause.
    clock: seconds that only go forward.
    """

    def __init__(
        self,
        first_s: float = 1.0,
        most_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_s, self._most_s, self._clock = first_s, most_s, clock
        self._lock = Lock()
        self._failures = 0  # in a row
        self._until = 0.0
        self.reason = ""

    @property
    def pause_s(self) -> float:
        """Seconds until somebody may ask again; 0 for now."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._failures else 0.0

    def allow(self) -> bool:
        """Whether this caller may ask. While the server is believed dead, one is let through after
        each pause."""
        with self._lock:
            if not self._failures:
                return True
            if self._clock() < self._until:
                return False
            self._until = self._clock() + self._length()  # others wait for what this one finds
            return True

    def wake(self) -> None:
        """End the pause, so that the next caller may ask."""
        with self._lock:
            self._until = self._clock()

    def failed(self, reason: str, at_least_s: float = 0.0) -> None:
        """at_least_s: a pause that the server asked for."""
        with self._lock:
            self._failures += 1
            self.reason = reason
            self._until = self._clock() + max(self._length(), at_least_s)

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._until, self.reason = 0, 0.0, ""

    def _length(self) -> float:
        return float(min(self._first_s * 2.0 ** min(self._failures - 1, 60), self._most_s))
