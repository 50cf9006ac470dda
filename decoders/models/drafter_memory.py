"""Which arms' models are loaded: each when it is first used, and where memory runs out, those that
are idle make room."""

from __future__ import annotations

import ctypes
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

import torch
from safetensors import SafetensorError

from ..common.breaker import Breaker
from ..common.errors import ArmDown, DraftpickError
from ..protocols import Backend, Strategy
from .memory import OutOfMemory, explained

FIRST_S, LONGEST_S = 1.0, 300.0  # after which a failed load is tried again, at first and at most

_FAILS = (DraftpickError, OSError, SafetensorError)  # of a model's files or for want of memory


class LoadFailed(ArmDown):
    """An arm whose models could not be loaded; the message is that of what failed.

    load_s: seconds that the attempt took.
    """

    def __init__(self, arm: str, reason: str, pause_s: float, load_s: float = 0.0) -> None:
        super().__init__(arm, reason, pause_s)
        self.args = (reason,)
        self.load_s = load_s


class Holder(Protocol):
    """An engine: it keeps the moving parts of its arms."""

    target: Backend

    def forget(self, arm: str) -> None:
        """Let an arm's moving parts go."""


class DrafterMemory:
    """Loads the arms of engines over one model. Used by one thread.

    load_s: seconds spent loading so far, failed attempts included.
    """

    def __init__(self) -> None:
        self.load_s = 0.0
        self.arms: list[str] = []  # those that were loaded, and not let go
        self._holders: WeakSet[Holder] = WeakSet()
        self._at_work: Counter[str] = Counter()
        self._breakers: dict[str, Breaker] = {}

    def join(self, holder: Holder) -> None:
        """Let go what an engine has loaded, where the others need room."""
        self._holders.add(holder)

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """Why each arm could not be loaded and when it will be tried again."""
        return {
            arm: LoadFailed(arm, breaker.reason, breaker.pause_s)
            for arm, breaker in self._breakers.items()
            if breaker.pause_s > 0
        }

    def wake(self) -> None:
        """Try at once what could not be loaded, as after its files were mended."""
        self._breakers.clear()

    @contextmanager
    def at_work(self, arm: str) -> Iterator[None]:
        """Meanwhile the arm is not let go."""
        self._at_work[arm] += 1
        try:
            yield
        finally:
            self._at_work[arm] -= 1

    def load(self, holder: Holder, arm: str, build: Callable[[], Strategy]) -> Strategy:
        """Make what `build` does, for this engine to keep. Raises LoadFailed, without a try where
        the last one was a moment ago."""
        breaker = self._breakers.setdefault(arm, Breaker(FIRST_S, LONGEST_S))
        if (pause_s := breaker.pause_s) > 0:
            raise LoadFailed(arm, breaker.reason, pause_s)
        started = time.perf_counter()
        try:
            made = self._built(arm, holder.target, build)
        except _FAILS as error:
            took = time.perf_counter() - started
            self.load_s += took
            breaker.failed(str(error))
            raise LoadFailed(arm, str(error), breaker.pause_s, took) from error
        self.load_s += time.perf_counter() - started
        breaker.succeeded()
        if arm not in self.arms:
            self.arms.append(arm)
        return made

    def _built(self, arm: str, target: Backend, build: Callable[[], Strategy]) -> Strategy:
        """Build once more without the arms that are idle, where memory runs out."""

        def attempt() -> Strategy:
            with explained(target.device, f"loading the arm {arm!r}"):
                return build()

        try:
            return attempt()
        except OutOfMemory:
            idle = [other for other in self.arms if not self._at_work[other]]
            if not idle:
                raise
        for other in idle:
            self.arms.remove(other)
            for each in self._holders:
                each.forget(other)
        _give_back()
        return attempt()


def _give_back() -> None:
    """Let the system have what was freed."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
