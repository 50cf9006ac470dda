"""Models known by name: fetched ones (cache) and shipped ones (next to this file)."""

from .cached import CachedEntry, cached, clear
from .catalogue import EMBEDDER, TARGET, ModelCard, catalogue, verify_files
from .fetch import converted, fetch, from_gguf
from .fetch_file import fetch_file

__all__ = [
    "EMBEDDER", "TARGET", "CachedEntry", "ModelCard", "cached", "catalogue", "clear", "converted",
    "fetch", "fetch_file", "from_gguf", "verify_files",
]  # fmt: skip
