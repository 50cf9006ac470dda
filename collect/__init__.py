"""Collect: queries x arms -> stored outcomes -> rewards.

    from collect import SweepOptions, read_queries, reward_table, sweep

Names are imported when first used, so that `import collect` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import SweepOptions
    from .dataset import load, read_manifest
    from .queries import Query, read_queries, shipped
    from .rewards import REWARDS, Reward
    from .run import sweep
    from .summary import summarise
    from .table import read_outcomes, reward_table

__all__ = [
    "REWARDS",
    "Query",
    "Reward",
    "SweepOptions",
    "load",
    "read_manifest",
    "read_outcomes",
    "read_queries",
    "reward_table",
    "shipped",
    "summarise",
    "sweep",
]

_HOMES = {
    "REWARDS": "rewards",
    "Query": "queries",
    "Reward": "rewards",
    "SweepOptions": "batch",
    "load": "dataset",
    "read_manifest": "dataset",
    "read_outcomes": "table",
    "read_queries": "queries",
    "reward_table": "table",
    "shipped": "queries",
    "summarise": "summary",
    "sweep": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
