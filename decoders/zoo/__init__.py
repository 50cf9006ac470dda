"""Models known by name: fetched ones (cache) and shipped ones (next to this file)."""

from .cached import CachedEntry, cached, clear
from .catalogue import EMBEDDER, TARGET, ModelCard, catalogue, shipped_folder, verify_files
from .fetch import converted, fetch, from_gguf

__all__ = [
    "EMBEDDER",
    "TARGET",
    "CachedEntry",
    "ModelCard",
    "cached",
    "catalogue",
    "clear",
    "converted",
    "fetch",
    "from_gguf",
    "shipped_folder",
    "verify_files",
]
