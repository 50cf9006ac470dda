"""A bounded queue that is fair to its clients: they take turns, however much one of them asks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from decoders.common.errors import DraftpickError

T = TypeVar("T")


class QueueFull(Exception):
    """There is no place left; the client should come again later."""


class FairQueue(Generic[T]):
    """Round-robin over clients, first come first served within each. Safe among threads.

    most: places, over all clients. Where all are taken, a client gets one of another that has two
    or more places more.
    """

    def __init__(self, most: int = 64) -> None:
        if most < 1:
            raise DraftpickError(f"a queue needs at least 1 place, not {most}")
        self.most = most
        self._waiting: dict[str, deque[T]] = {}  # whose turn is next comes first
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def put(self, client: str, item: T) -> T | None:
        """What had to make room for it: the newest item of the client with the most; None where
        there was room. Raises QueueFull."""
        with self._changed:
            held, evicted = len(self), None
            if held >= self.most:
                longest = max(self._waiting.values(), key=len)
                if len(longest) < len(self._waiting.get(client, ())) + 2:
                    raise QueueFull(f"{held} requests already wait")
                evicted = longest.pop()
            self._waiting.setdefault(client, deque()).append(item)
            self._changed.notify()
            return evicted

    def wait(self, timeout_s: float) -> bool:
        """Until there is something to take; False where nothing came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting), timeout_s)

    def take(self) -> T | None:
        """The next client's oldest item; None where there is none."""
        with self._changed:
            if not self._waiting:
                return None
            client = next(iter(self._waiting))
            line = self._waiting.pop(client)
            item = line.popleft()
            if line:  # behind all others
                self._waiting[client] = line
            return item

    def remove(self, item: T) -> bool:
        """Take one item out of turn; False where it is not in the queue."""
        with self._changed:
            for client, line in self._waiting.items():
                if item in line:
                    line.remove(item)
                    if not line:
                        del self._waiting[client]
                    return True
            return False
