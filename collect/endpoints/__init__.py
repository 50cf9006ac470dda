"""Collecting from endpoints: a plugin. It stays light, and the executor is imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sweeps.executors import EXECUTORS

if TYPE_CHECKING:
    from .executor import Endpoints


def _executor(engine: Any) -> Endpoints:
    from .executor import Endpoints

    return Endpoints(engine)


EXECUTORS["endpoint"] = _executor
