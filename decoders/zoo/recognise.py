"""Which known model a target is, by its name or by what a GGUF file says of itself."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from .catalogue import KNOWN_FILES, WHEELS


def known_as(target: str) -> str | None:
    """The known name of a target, or of the model that a GGUF file holds in any quantisation; None
    for others.

    A file is known by its base name, size and finetune, or where it gives no base name by its name.
    Raises DraftpickError as `read_header` does.
    """
    if target in WHEELS or target in KNOWN_FILES:
        return target
    file = os.path.expanduser(target)
    if not file.endswith(".gguf") or not os.path.isfile(file):  # which raise nothing
        return None
    facts = os.stat(file)
    return _known(Path(file).absolute(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=16)
def _known(file: Path, size: int, changed: int) -> str | None:
    """size, changed: so that another file in the same place is read anew."""
    from ..backends.gguf.header import read_header

    said = _said(read_header(file).metadata)
    return next((name for name in KNOWN_FILES if said.startswith(_plain(name))), None)


def _said(metadata: dict[str, Any]) -> str:
    parts = [metadata.get(f"general.{each}", "") for each in ("basename", "size_label", "finetune")]
    if not parts[0]:
        parts = [metadata.get("general.name", "")]
    return _plain("".join(map(str, parts)))


def _plain(name: str) -> str:
    """Letters and digits alone, as files write one name in several ways."""
    return "".join(each for each in name.casefold() if each.isalnum())
