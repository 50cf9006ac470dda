"""A model's folder in the cache that holds no weights but says in which GGUF files they are."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from ...common.errors import DraftpickError
from .header import Header, StoredTensor

NAMED = "gguf.json"


def save_header(header: Header, folder: Path) -> None:
    """What loading needs of it; the tokenizer's fields are left out."""
    short = {k: v for k, v in header.metadata.items() if not k.startswith("tokenizer.")}
    content = {
        "files": [str(file.absolute()) for file in header.files],
        "bytes": [file.stat().st_size for file in header.files],
        "metadata": short,
        "tensors": [asdict(each) for each in header.tensors.values()],
    }
    (folder / NAMED).write_text(json.dumps(content), encoding="utf-8")


def files_of(folder: Path) -> list[Path]:
    """The GGUF files that a folder names; none where it holds its own weights. Raises
    DraftpickError where they are no longer there, or others."""
    header = saved_header(folder)
    return [] if header is None else [*header.files]


def saved_header(folder: Path) -> Header | None:
    """None of a folder that holds its own weights; raises as `files_of`."""
    path = folder / NAMED
    if not path.is_file():
        return None
    header, sizes = _read(path, path.stat().st_mtime_ns)
    for file, size in zip(header.files, sizes, strict=True):
        if not file.is_file() or file.stat().st_size != size:
            raise DraftpickError(f"{file} is not there any more, or has changed; name it again")
    return header


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> tuple[Header, list[int]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    saved = ({**each, "shape": tuple(each["shape"])} for each in content["tensors"])
    tensors = {each["name"]: StoredTensor(**each) for each in saved}
    files = tuple(Path(file) for file in content["files"])
    return Header(files, content["metadata"], tensors), content["bytes"]
