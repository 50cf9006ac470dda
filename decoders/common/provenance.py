"""Provenance of an artifact: code, command, versions, machine, time."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .machine import cpu_name, memory_gib, usable_cores
from .secrets import masked_arguments

PACKAGES = (
    "draftpick", "torch", "triton", "transformers", "datasets", "pyarrow", "numpy", "rouge_score",
    "scikit-learn", "mlflow",
)  # fmt: skip


def provenance() -> dict[str, Any]:
    """A JSON-ready record of this run: git, argv without keys, versions, hardware, time (UTC, ISO
    8601)."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": masked_arguments(sys.argv),
        "git": git_state(),
        "versions": versions(),
        "hardware": hardware(),
    }


def tags() -> dict[str, str]:
    """The same as flat text for a tracking store; what cannot be found out says "unknown"."""
    git, machine = git_state(), hardware()
    gpus = [f", {name}" for name in machine["gpus"]]
    return {
        "git_sha": "unknown" if git is None else git["sha"] + "-dirty" * git["dirty"],
        "argv": " ".join(masked_arguments(sys.argv))[:500],
        "hardware": f"{machine['cpu']}, {machine['cores']} cores{''.join(gpus)}",
        "platform": platform.platform(),
        **{f"version.{package}": version for package, version in versions().items()},
    }


def measured_on(dtype: str | None = None, device: str | None = None) -> dict[str, Any]:
    """`hardware`, and what else decides a figure: what was asked of the target."""
    asked = {"dtype": dtype, "device": device}
    return {**hardware(), **{name: value for name, value in asked.items() if value is not None}}


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
    """CPU, usable cores, torch's threads, memory, GPUs and what drives them; no host or user
    name."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads": _threads(),
        "memory_gib": memory_gib(),
        "gpus": _gpus(),
        "cuda": _cuda(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    return _said("git", "-C", str(folder), *arguments)


def _said(*command: str) -> str | None:
    """What a program writes; None where it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=10, encoding="utf-8", errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _threads() -> int | None:
    """Threads that torch computes with; None where it is not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


def _torch_with_cuda() -> Any:
    # torch is asked only where it is loaded already: importing it for a name costs seconds.
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def _gpus() -> list[str]:
    torch = _torch_with_cuda()
    if torch is None:
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _cuda() -> dict[str, Any] | None:
    """{"version", "driver", "capability", "memory_gib"}, the last two of each GPU; None without."""
    torch = _torch_with_cuda()
    if torch is None:
        return None
    driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    gpus = range(torch.cuda.device_count())
    sizes = [torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus]
    return {
        "version": torch.version.cuda,
        "driver": next(iter((driver or "").split()), None),
        "capability": [".".join(map(str, torch.cuda.get_device_capability(gpu))) for gpu in gpus],
        "memory_gib": [round(size / 2**30, 1) for size in sizes],
    }
