"""Equal servers behind one address: routing of requests, and replacing a dead one.

Each request goes to the less busy of two replicas drawn at random, which keeps all of them nearly
as even as asking every one would (Mitzenmacher, The Power of Two Choices in Randomized Load
Balancing, 2001).
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ..scheduler import happens

AGAIN_S = 1.0  # after which a replica that could not be started is tried again


class Starter(Protocol):
    """Starts replicas; used from several threads."""

    def start(self) -> tuple[str, Any]:
        """The address of a new replica that answers, and what `stop` takes. Raises DraftpickError
        where it cannot be made."""

    def stop(self, handle: Any) -> None:
        """End a replica at once; one that is dead already is no mistake."""


@dataclass(eq=False)
class Replica:
    """under_way: requests that it was given and has not answered, those in its queue included."""

    url: str
    handle: Any
    under_way: int = 0


class Replicas:
    """n replicas, each replaced when it is lost.

    Raises what a replica's start raises, where none of them can be started at first.
    """

    def __init__(self, starter: Starter, n: int, rng: random.Random | None = None) -> None:
        self._starter, self.n = starter, n
        self._rng = random.Random() if rng is None else rng
        self._lock = threading.Lock()
        self._live: list[Replica] = []
        self._draining = self._closed = False
        self.lost_count = 0
        with ThreadPoolExecutor(n) as pool:
            begun = [pool.submit(starter.start) for _ in range(n)]
        failed = [error for each in begun if (error := each.exception()) is not None]
        self._live = [Replica(*each.result()) for each in begun if each.exception() is None]
        if failed:
            self.close()
            raise failed[0]

    @property
    def live(self) -> list[Replica]:
        with self._lock:
            return list(self._live)

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def under_way(self) -> int:
        return sum(replica.under_way for replica in self.live)

    def take(self, but: Collection[Replica] = ()) -> Replica | None:
        """The replica for a request, which counts as under way until it is given back; None where
        there is none but those of `but`."""
        with self._lock:
            left = [replica for replica in self._live if replica not in but]
            if not left:
                return None
            drawn = self._rng.sample(left, min(2, len(left)))
            best = min(drawn, key=lambda replica: replica.under_way)
            best.under_way += 1
            return best

    def give_back(self, replica: Replica) -> None:
        with self._lock:
            replica.under_way -= 1

    def lose(self, replica: Replica, why: str) -> None:
        """It does not answer any more: another one is started in its place."""
        with self._lock:
            if replica not in self._live:
                return  # somebody else was faster
            self._live.remove(replica)
            self.lost_count += 1
            closed = self._closed
        with suppress(Exception):
            self._starter.stop(replica.handle)
        if not closed:
            print(f"the replica {replica.url} is lost ({why}); another starts", file=sys.stderr)
            threading.Thread(target=self._replace, name="replace", daemon=True).start()

    def _replace(self) -> None:
        while not self._closed:
            try:
                made = Replica(*self._starter.start())
            except Exception as error:  # whatever it is, the others go on
                print(f"a replica could not be started: {error}", file=sys.stderr)
                time.sleep(AGAIN_S)
                continue
            with self._lock:
                if not self._closed:
                    self._live.append(made)
                    print(f"the replica {made.url} is ready", file=sys.stderr)
                    return
            self._starter.stop(made.handle)

    def drain(self, timeout_s: float) -> bool:
        """Take nothing more and wait until what was taken has ended; False where some has not."""
        self._draining = True
        return happens(lambda: self.under_way == 0, timeout_s)

    def close(self) -> None:
        """End all of them at once."""
        with self._lock:
            self._draining = self._closed = True
            live, self._live = self._live, []
        for replica in live:
            with suppress(Exception):
                self._starter.stop(replica.handle)
