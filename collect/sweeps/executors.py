"""How arms that answer elsewhere are collected, by their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decoders.common.plugins import watched

if TYPE_CHECKING:
    from .executor import OwnExecutor

EXECUTORS: dict[str, Callable[[Any], OwnExecutor]] = watched("executor", {})
"""Each makes one of the kind's engine."""
