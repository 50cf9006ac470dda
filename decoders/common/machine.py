"""The machine: its name, for figures that hold on it alone, and its memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

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
        lines = STAT.read_text().splitlines()
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
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Memory that processes could still take, swap included, if the system reports it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None  # not Linux
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    if "MemAvailable" not in kib:
        return None
    return 1024 * (kib["MemAvailable"] + kib.get("SwapFree", 0))


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float | None:
    """The whole machine's memory, if the system reports it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None
