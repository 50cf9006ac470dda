"""Models known by name: fetched ones (cache) and shipped ones (beside this file)."""

from .catalogue import EMBEDDER, TARGET, ModelCard, catalogue, shipped_folder, verify_files
from .fetch import fetch

__all__ = [
    "EMBEDDER",
    "TARGET",
    "ModelCard",
    "catalogue",
    "fetch",
    "shipped_folder",
    "verify_files",
]
