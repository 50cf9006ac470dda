"""Counts an answer's tokens where its server does not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any


def tokens_of(tokenizer: str, text: str) -> int:
    """How many tokens the text has. tokenizer: a folder or name. Raises DraftpickError where it
    cannot be loaded."""
    return len(_loaded(tokenizer).encode(text, add_special_tokens=False))


@lru_cache
def _loaded(name: str) -> Any:
    from ..models.targets import load_tokenizer, resolve

    folder = Path(name).expanduser()
    return load_tokenizer(folder if folder.is_dir() else resolve(name))
