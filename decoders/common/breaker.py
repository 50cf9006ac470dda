"""A circuit breaker: a dead server is left alone for a while, longer each time.

Nygard, *Release It!* (2007), chapter 5. After a failure nobody asks until the pause is over; then
one caller tries, and only if that succeeds do the others ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Breaker:
    """A circuit breaker of one server; may be used from several threads, whose calls may overlap.
    Of those that began before the present pause neither failure nor success says anything new.

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
        self._pauses = 1  # so far, and one that was over at first
        self._until = 0.0
        self.reason = ""

    @property
    def pause_s(self) -> float:
        """Seconds until somebody may ask again; 0 for now."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._failures else 0.0

    def allow(self) -> int:
        """The pause that this caller may ask after, to be told with what it finds; 0 if it may not.
        While the server is believed dead, one is let through after each pause."""
        with self._lock:
            if self._failures:
                if self._clock() < self._until:
                    return 0
                self._until = self._clock() + self._length()  # others wait for what this one finds
            return self._pauses

    def wake(self) -> None:
        """End the pause, so that the next caller may ask."""
        with self._lock:
            self._until = self._clock()

    def failed(self, reason: str, at_least_s: float = 0.0, after: int | None = None) -> None:
        """at_least_s: a pause that the server asked for. after: what `allow` gave; None for the
        present pause."""
        with self._lock:
            if after in (None, self._pauses):
                self._failures += 1
                self._pauses += 1
                self.reason = reason
                self._until = self._clock() + max(self._length(), at_least_s)

    def succeeded(self, after: int | None = None) -> None:
        """after: as in `failed`."""
        with self._lock:
            if after in (None, self._pauses):
                self._failures, self._until, self.reason = 0, 0.0, ""

    def _length(self) -> float:
        return float(min(self._first_s * 2.0 ** min(self._failures - 1, 60), self._most_s))
