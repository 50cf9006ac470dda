"""The name of a model in a recipe: a shipped name, a local folder or GGUF file, or a hub id."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, SerializationInfo

BY_WEIGHTS = "by weights"  # the context of a dump that tells local models by their weights


def _dumped(name: str, info: SerializationInfo) -> str:
    return _by_weights(name) if info.context == BY_WEIGHTS else name


ModelName = Annotated[str, PlainSerializer(_dumped, return_type=str)]


def _by_weights(name: str) -> str:
    """`@` and eight hex digits of a local model's weights and draft tokens; other names stay.

    Models known by name are verified by their hashes when they are loaded. What holds no weights
    keeps its name, and loading it says what is wrong.
    """
    from ..zoo.catalogue import KNOWN_FILES, WHEELS, shipped_folders

    local = Path(name).expanduser()
    if name in {*shipped_folders(), *WHEELS, *KNOWN_FILES} or not local.exists():
        return name
    from ..common.errors import DraftpickError
    from ..models.targets import fingerprint
    from ..sampling.draft_vocab import FILE

    try:
        vocab = local / FILE
        draft_tokens = hashlib.sha256(vocab.read_bytes()).hexdigest()[:8] if vocab.is_file() else ""
        return f"@{fingerprint(local)}{draft_tokens}"
    except DraftpickError:
        return name
