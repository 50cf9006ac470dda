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
    "EMBEDDERS",
    "FEATURES",
    "REWARDS",
    "Collection",
    "Embedder",
    "Query",
    "RequestContext",
    "Reward",
    "SweepOptions",
    "TableOptions",
    "feature_vector",
    "load",
    "load_embedder",
    "read_manifest",
    "read_queries",
    "reward_table",
    "shipped",
    "summarise",
    "sweep",
]

_HOMES = {
    "EMBEDDERS": "embedders",
    "FEATURES": "features",
    "REWARDS": "rewards",
    "Collection": "store.collection",
    "Embedder": "embedders",
    "Query": "queries",
    "RequestContext": "features",
    "Reward": "rewards",
    "SweepOptions": "sweeps.batch",
    "TableOptions": "table_options",
    "feature_vector": "features",
    "load": "store.tables",
    "load_embedder": "embedders",
    "read_manifest": "store.manifest",
    "read_queries": "queries",
    "reward_table": "table",
    "shipped": "queries",
    "summarise": "summary",
    "sweep": "sweeps.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
