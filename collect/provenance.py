"""Where and how an artifact was made: code, command, versions, machine, time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from decoders.machine import cpu_name

PACKAGES = ("draftpick", "torch", "transformers", "datasets", "pyarrow", "numpy", "rouge_score")


def provenance() -> dict[str, Any]:
    """A JSON-ready record of this run: git, argv, versions, hardware, time (UTC, ISO 8601)."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv),
        "git": git_state(),
        "versions": versions(),
        "hardware": hardware(),
    }


def git_state() -> dict[str, Any] | None:
    """{"sha", "dirty"} of the checkout that this code runs from; None outside one.

    A package installed into a virtual environment inside somebody else's repository must not
    claim that repository's commit, so the file itself has to be tracked.
    """
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    sha = _git(here.parent, "rev-parse", "--verify", "HEAD")
    if sha is None:
        return None
    return {"sha": sha, "dirty": bool(_git(here.parent, "status", "--porcelain", "-uno"))}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages whose arithmetic or formats matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """CPU, usable cores, memory and GPUs; no host or user name."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": _usable_cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _gpus() -> list[str]:
    # torch is asked only where it is loaded already: importing it for a name costs seconds.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
