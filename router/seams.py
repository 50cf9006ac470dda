"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from typing import Protocol

from collect.engine import ArmEngine


class RoutingEngine(ArmEngine, Protocol):
    """What routing needs beside: the target's name, and the tokens that end its answers."""

    target_name: str
    eos_ids: tuple[int, ...]
