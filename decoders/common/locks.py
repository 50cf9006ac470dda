"""One process at a time in a folder that is filled over minutes or hours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import DraftpickError
from .files import check_folder

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block runs; the folder is made where it is missing. Raises
    DraftpickError where it takes no files, or another process holds its lock."""
    check_folder(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DraftpickError(
            f"another process is writing into {folder}; wait for it, or use another --out"
        ) from None
    try:
        yield
    finally:
        lock.release()
