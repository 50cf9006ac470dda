"""Fewer threads while other processes keep the cores busy.

Between two parallel loops threads wait for the slowest, and spin while they wait. A thread that has
lost its core to another process holds all of them up: one busy neighbour on two cores slowed
decoding twentyfold. So the neighbours' share of the cores is looked at now and then, and only as
many threads run as there are cores left. Results do not depend on how many run.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from ..common import control_group
from ..common.machine import Look, allowed_cores, look, others

OMP_PAUSE_HARD = 2
WINDOW_S = 0.4  # between two looks; the system counts in hundredths of a second


class Threads:
    """Sets PyTorch's threads, whose number is each thread's own; a new one begins with what was
    set last.

    full: as many as were asked for, or as the control group's quota of cores where that is less.
    """

    def __init__(self) -> None:
        self.full = _within_quota()
        self._own, self._set = threading.local(), {self.full}  # what one thread, all were set to
        self._last = look() if self.full > 1 else None

    def adapt(self) -> None:
        """Before a pass: where the last look is old enough, look again."""
        if self._last is None or time.perf_counter() - self._last.wall < WINDOW_S:
            return
        has = torch.get_num_threads()
        if has not in getattr(self._own, "set", self._set):  # somebody else asked for others
            self.full = has = _within_quota()
        now = look()
        if now is not None:
            wanted = self.wanted(self._last, now, allowed_cores())
            if wanted != has:
                torch.set_num_threads(wanted)
            self._own.set = {wanted}
            self._set.add(wanted)
        self._last = now

    def wanted(self, last: Look, now: Look, cores: int) -> int:
        """The number of cores that others leave, half a core counting as one.

        cores: all that the others were counted on; a quota, which is this process's alone, is in
            `full`.
        """
        return max(1, min(self.full, int(cores - others(last, now) + 0.5)))


def _within_quota() -> int:
    """PyTorch's threads, after there are no more than the control group has cores' time for."""
    quota = control_group.cores()
    if quota is not None and quota < torch.get_num_threads():
        torch.set_num_threads(max(1, int(quota)))
    return torch.get_num_threads()


@cache
def threads() -> Threads:
    """The process's own."""
    return Threads()


def let_go() -> None:
    """End the helper threads of this thread's parallel loops; its next loop starts new ones.

    To be called before another thread takes over. The helpers that would wait here count: where
    there are more than cores, libgomp lets none of them spin, and every loop of the other thread
    begins by waking one up. Plain decoding in int4, compiled: 44 tokens a second instead of 104.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # not Linux
    names = {line.split()[-1] for line in maps.splitlines() if re.search(r"/lib[gi]?i?omp", line)}
    for name in names:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(name).omp_pause_resource_all(OMP_PAUSE_HARD)
