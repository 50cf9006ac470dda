"""What Linux lets this process have: the limits of its control group and of those above it.

A container or a service may be given less memory and fewer cores than the machine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


def memory_limit() -> int | None:
    """Bytes that the process's groups may use, the least of their limits; None without one."""
    return min((limit for limit, _ in _memory()), default=None)


def memory_left() -> int | None:
    """Bytes until the first of the limits is reached, not counting files that the system could drop
    from memory; None without a limit."""
    return min((max(0, limit - used) for limit, used in _memory()), default=None)


def cores() -> float | None:
    """Processors' worth of time that the groups may use, the least of their quotas; None without
    one."""
    found = []
    for folder in _folders("cpu"):
        quota, period = _numbers(folder / "cpu.max", 2)  # version 2
        if quota is None:
            (quota,), (period,) = (
                _numbers(folder / f"cpu.cfs_{name}_us", 1) for name in ("quota", "period")
            )
        if quota is not None and period and quota > 0:
            found.append(quota / period)
    return min(found, default=None)


def _memory() -> Iterator[tuple[int, int]]:
    """(limit, used) of each group that has a limit."""
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder in _folders("memory"):
        for most, now in names:
            (limit,), (used,) = _numbers(folder / most, 1), _numbers(folder / now, 1)
            if limit is not None and used is not None:
                yield limit, max(0, used - _inactive(folder))


def _inactive(folder: Path) -> int:
    """Bytes of files that were not read lately."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    values = dict(line.split(None, 1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _folders(controller: str) -> Iterator[Path]:
    """The process's group and those above it, of version 2 and of the controller's version 1."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = ROOT / controllers if controllers else ROOT
        if controllers and not root.is_dir():
            root = ROOT / controller
        group = root / path.lstrip("/")
        yield from (each for each in (group, *group.parents) if each.is_relative_to(root))


def _numbers(path: Path, count: int) -> list[int | None]:
    """The file's first whole numbers; None for what it lacks or spells otherwise, such as "max"."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        words = []
    words += [""] * (count - len(words))
    return [int(word) if word.lstrip("-").isdigit() else None for word in words[:count]]
