"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from collect.engine import ArmEngine
from decoders.errors import ArmDown


class RoutingEngine(ArmEngine, Protocol):
    """What routing needs beside: the target's name, and the tokens that end its answers."""

    target_name: str
    eos_ids: tuple[int, ...]


@runtime_checkable
class Sleeping(Protocol):
    """An engine whose arms may be down for a while."""

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """By arm, why and how long it is not to be asked."""
        ...
