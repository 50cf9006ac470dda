"""What lies in the cache, by names that can be cleared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import DraftpickError, NoSuchName
from .catalogue import COMPLETE, KNOWN_FILES, WHEELS, cache_dir

PARTS = {  # of the cache, besides models
    "compiled": "kernels compiled for this machine",
    "costs": "what passes cost, as measured",
    "digests": "of weights' files, by which models are known",
}


@dataclass(frozen=True)
class CachedEntry:
    """name: to clear it by.
    what: in words.
    size_bytes: that clearing it frees.
    """

    name: str
    what: str
    size_bytes: int
    path: Path


def cached() -> list[CachedEntry]:
    """Models first. Files that draftpick did not make are left out."""
    return [
        CachedEntry(name, what, size_of(path), path)
        for name, what, path in _found(cache_dir())
        if path.exists()
    ]


def clear(name: str) -> CachedEntry:
    """Remove an entry from the disk; it is made or fetched again when it is next needed. Raises
    NoSuchName with the names there are, and DraftpickError where the disk refuses."""
    entries = {entry.name: entry for entry in cached()}
    if name not in entries:
        raise NoSuchName("entry of the cache", name, list(entries))
    found = entries[name]
    try:
        if found.path.is_dir():
            shutil.rmtree(found.path)
        else:
            found.path.unlink()
    except OSError as error:
        raise DraftpickError(f"{found.path} could not be removed: {error}") from error
    return found


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _found(cache: Path) -> Iterator[tuple[str, str, Path]]:
    for name in WHEELS:
        yield name, "fetched model", cache / name
    for name, known in KNOWN_FILES.items():
        yield name, "fetched GGUF file", known.path
        yield f"{name}-parts", "parts of it; naming the model fetches the rest", known.kept
    for folder in sorted((cache / "gguf").glob("*")):
        yield folder.name, _of_gguf(folder), folder
    for file in sorted((cache / "rounded").glob("*.safetensors")):
        yield file.stem, "rounded weights of a model", file
    for name, what in PARTS.items():
        yield name, what, cache / name


def _of_gguf(folder: Path) -> str:
    """Which file it was made of, where it says so."""
    try:
        named = json.loads((folder / COMPLETE).read_text(encoding="utf-8")).get("gguf")
    except (OSError, ValueError):
        return "half made"
    if named is None:
        return "GGUF file, converted"
    return f"config and tokenizer of {named}" + ("" if Path(named).is_file() else ", gone")
