"""The machine as far as this process may use it: its name, for figures that hold on it alone, its
memory and its cores."""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from . import control_group

STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Look:
    """Seconds so far: of the clock, of this process, and of everything on this process's cores."""

    wall: float
    own: float
    busy: float


def look() -> Look | None:
    """None if the system does not report it."""
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = STAT.read_text(encoding="utf-8").splitlines()
    except (AttributeError, OSError):
        return None  # not Linux
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in mine:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, counts[:8])
            ticks += user + nice + system + irq + softirq + steal
    return Look(time.perf_counter(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK"))


def others(last: Look, now: Look) -> float:
    """Cores that other processes kept busy between two looks."""
    passed = now.wall - last.wall
    return max(0.0, (now.busy - last.busy - (now.own - last.own)) / passed) if passed > 0 else 0.0


def cpu_name() -> str:
    """The processor's name, if the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Memory that this process could still take, if the system reports it: of the machine's, swap
    included, and of what its control group may use."""
    found = [each for each in (_machine_bytes(), control_group.memory_left()) if each is not None]
    return min(found, default=None)


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None  # not Linux
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    if "MemAvailable" not in kib:
        return None
    return 1024 * (kib["MemAvailable"] + kib.get("SwapFree", 0))


def allowed_cores() -> int:
    """Cores that this process may run on, for however little time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Cores that this process may run on, and has time for by its control group's quota."""
    allowed, quota = allowed_cores(), control_group.cores()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def memory_gib() -> float | None:
    """The machine's memory, or as much of it as the control group may use, if the system reports
    it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    limit = control_group.memory_limit()
    return round((whole if limit is None else min(whole, limit)) / 2**30, 1)
