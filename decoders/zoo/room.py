"""Whether there is room for what will be fetched or converted, asked before it begins."""

from __future__ import annotations

import shutil

from ..common.errors import DraftpickError
from ..common.machine import available_bytes
from .catalogue import cache_dir


def require_disk(what: str, needed: int) -> None:
    """needed: bytes in the cache. Raises DraftpickError where the disk has fewer."""
    folder = cache_dir()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DraftpickError(
            f"{what} needs {needed / 1e9:.1f} GB under {folder}, and {free / 1e9:.1f} are free; "
            "free some space or point DRAFTPICK_CACHE elsewhere"
        )


def require_memory(what: str, needed: int) -> None:
    """needed: bytes. Raises DraftpickError where fewer are available, if the system says."""
    free = available_bytes()
    if free is not None and free < needed:
        raise DraftpickError(
            f"{what} needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} are free; close "
            "other programs, or take a smaller model"
        )
