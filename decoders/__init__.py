"""One core for every way to decode: a loop, and the drafters, verifiers and lengths it runs.

Names below load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DraftpickError

if TYPE_CHECKING:
    from .arms import load_arms
    from .engine import Engine
    from .queries import Query, read_queries
    from .recipes import ArmRecipe
    from .records import DecodeResult, Prefilled, Request, Sampling

_HOME = {
    "ArmRecipe": ".recipes",
    "load_arms": ".arms",
    "Engine": ".engine",
    "Query": ".queries",
    "read_queries": ".queries",
    "DecodeResult": ".records",
    "Prefilled": ".records",
    "Request": ".records",
    "Sampling": ".records",
}

__all__ = [
    "ArmRecipe",
    "DecodeResult",
    "DraftpickError",
    "Engine",
    "Prefilled",
    "Query",
    "Request",
    "Sampling",
    "load_arms",
    "read_queries",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
