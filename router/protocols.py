"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from collect.sweeps.protocols import ArmEngine
from decoders.common.errors import ArmDown


class RoutingEngine(ArmEngine, Protocol):
    """What routing and serving need besides: the target's name, the tokens that end its answers,
    the positions that it holds, and texts that are no chats."""

    target_name: str
    eos_ids: tuple[int, ...]

    @property
    def context(self) -> int: ...

    def encode_text(self, text: str) -> list[int]: ...


@runtime_checkable
class Sleeping(Protocol):
    """An engine whose arms may be down for a while."""

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """By arm, why and how long it is not to be asked."""
        ...
