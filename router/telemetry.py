"""On what a figure was measured: hardware, versions, dtype."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from decoders.machine import cpu_name

PACKAGES = ("draftpick", "torch", "transformers", "numpy")


def hardware(dtype: str | None = None, device: str | None = None) -> dict[str, Any]:
    """The machine, in a dict that goes into every report. memory_gib is the whole machine's."""
    described: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    import torch

    described["threads"] = torch.get_num_threads()
    described["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if dtype is not None:
        described["dtype"] = dtype
    if device is not None:
        described["device"] = device
    return described


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the figures."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def memory_gib() -> float | None:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return round(pages * size / 2**30, 1)
