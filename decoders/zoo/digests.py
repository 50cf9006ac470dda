"""Digests of whole files, each taken once: beside it is kept what the system says of the file."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import stat_result
from pathlib import Path

from ..common.errors import DraftpickError
from ..common.files import write_atomically
from .catalogue import cache_dir, sha256_of

AT_ONCE = 4  # files
SETTLED_S = 2.0  # since a file's last change; a younger one may change unseen by its times
MUCH = 2_000_000_000  # bytes, whose reading is told of


def digests_of(files: Sequence[Path]) -> list[str]:
    """SHA-256 of each file's content. Raises OSError where one cannot be read."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        known = list(pool.map(_kept, files))
        new = [file for file, digest in zip(files, known, strict=True) if digest is None]
        size = sum(file.stat().st_size for file in new)
        if size >= MUCH:
            print(
                f"reading {size / 1e9:.1f} GB of weights, by which a model is known (once) ...",
                file=sys.stderr,
                flush=True,
            )
        taken = dict(zip(new, pool.map(_taken, new), strict=True))
    return [digest or taken[file] for file, digest in zip(files, known, strict=True)]


def _facts(stat: stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _place(file: Path) -> Path:
    name = hashlib.sha256(str(file.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return cache_dir() / "digests" / f"{name[:32]}.json"


def _kept(file: Path) -> str | None:
    stat = file.stat()
    try:
        known = json.loads(_place(file).read_text(encoding="utf-8"))
        return str(known["sha256"]) if known["facts"] == _facts(stat) else None
    except (OSError, ValueError, KeyError, TypeError, DraftpickError):
        return None


def _taken(file: Path) -> str:
    before = file.stat()
    digest = sha256_of(file)
    settled = time.time() - max(before.st_mtime, before.st_ctime) > SETTLED_S
    if settled and _facts(before) == _facts(file.stat()):
        with suppress(OSError, DraftpickError):  # a cache that cannot be written
            place = _place(file)
            place.parent.mkdir(parents=True, exist_ok=True)
            body = {"file": str(file), "facts": _facts(before), "sha256": digest}
            write_atomically(place, json.dumps(body) + "\n")
    return digest
