"""Servers as arms: any server with OpenAI's API. A plugin like any other package's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..arms import KINDS
from ..recipes.kinds import ENGINES
from .recipe import EndpointRecipe

if TYPE_CHECKING:
    from ..options import EngineOptions
    from .engine import EndpointEngine


def _engine(options: EngineOptions, only: Sequence[str]) -> EndpointEngine:
    from .engine import EndpointEngine  # which needs a client for HTTP

    return EndpointEngine.from_options(options, only)


KINDS["endpoint"] = EndpointRecipe
ENGINES["endpoint"] = _engine
