"""One core for every way to decode: a loop, and the drafters, verifiers and lengths it runs.

Names below load on first use, so that importing this package costs nothing. The seams (`Drafter`,
`Verifier`, ...) are in `protocols.py`; a part of one's own is put into one of the plain dicts
`KINDS`, `RULES`, `LENGTHS`, `ENGINES` and `BACKENDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .common.errors import DraftpickError

if TYPE_CHECKING:
    from .arms import (
        ENGINES,
        KINDS,
        LENGTHS,
        RULES,
        ArmRecipe,
        DraftingRecipe,
        LengthRecipe,
        VerifierRecipe,
        load_arms,
    )
    from .engine import Engine
    from .models.loaders import BACKENDS, LoadRequest
    from .options import EngineOptions
    from .protocols import Backend, Drafter, DraftLength, DraftRequest, Job, Strategy, Verifier
    from .records import (
        DecodeResult,
        Grammar,
        Prefilled,
        Proposal,
        Request,
        Sampling,
        StepStats,
        Verdict,
    )

_HOMES = {
    "arms": (
        "ENGINES", "KINDS", "LENGTHS", "RULES", "ArmRecipe", "DraftingRecipe", "LengthRecipe",
        "VerifierRecipe", "load_arms",
    ),
    "engine": ("Engine",),
    "models.loaders": ("BACKENDS", "LoadRequest"),
    "options": ("EngineOptions",),
    "protocols": (
        "Backend", "DraftLength", "DraftRequest", "Drafter", "Job", "Strategy", "Verifier",
    ),
    "records": (
        "DecodeResult", "Grammar", "Prefilled", "Proposal", "Request",
        "Sampling", "StepStats", "Verdict",
    ),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BACKENDS", "ENGINES", "KINDS", "LENGTHS", "RULES", "ArmRecipe", "Backend", "DecodeResult",
    "DraftLength", "DraftRequest", "Drafter", "DraftingRecipe", "DraftpickError", "Engine",
    "EngineOptions", "Grammar", "Job", "LengthRecipe", "LoadRequest", "Prefilled", "Proposal",
    "Request", "Sampling", "StepStats", "Strategy", "Verdict", "Verifier", "VerifierRecipe",
    "load_arms",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
