"""Collect: queries x arms -> stored outcomes -> rewards.

    from collect import Collection, SweepOptions, TableOptions, read_queries, reward_table, sweep

Names are imported when first used, so that `import collect` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embedders import EMBEDDERS, Embedder, load_embedder
    from .features import FEATURES, RequestContext, feature_vector
    from .queries import Query, read_queries, shipped
    from .replay.protocols import KnownAnswers, ReplayedLoop
    from .replay.records import Replay, ToWrite, Written
    from .replay.registry import ADAPTERS, ReplayAdapter
    from .rewards import REWARDS, Reward
    from .store.collection import Collection
    from .store.manifest import read_manifest
    from .store.tables import load
    from .summary import summarise
    from .sweeps.batch import SweepOptions
    from .sweeps.run import sweep
    from .table import reward_table
    from .table_options import TableOptions

__all__ = [
    "ADAPTERS", "EMBEDDERS", "FEATURES", "REWARDS", "Collection", "Embedder", "KnownAnswers",
    "Query", "Replay", "ReplayAdapter", "ReplayedLoop", "RequestContext", "Reward",
    "SweepOptions", "TableOptions", "ToWrite", "Written", "feature_vector", "load",
    "load_embedder", "read_manifest", "read_queries", "reward_table", "shipped", "summarise",
    "sweep",
]  # fmt: skip

_HOMES = {
    "embedders": ("EMBEDDERS", "Embedder", "load_embedder"),
    "features": ("FEATURES", "RequestContext", "feature_vector"),
    "queries": ("Query", "read_queries", "shipped"),
    "replay.protocols": ("KnownAnswers", "ReplayedLoop"),
    "replay.records": ("Replay", "ToWrite", "Written"),
    "replay.registry": ("ADAPTERS", "ReplayAdapter"),
    "rewards": ("REWARDS", "Reward"),
    "store.collection": ("Collection",),
    "store.manifest": ("read_manifest",),
    "store.tables": ("load",),
    "summary": ("summarise",),
    "sweeps.batch": ("SweepOptions",),
    "sweeps.run": ("sweep",),
    "table": ("reward_table",),
    "table_options": ("TableOptions",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
