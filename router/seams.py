"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from typing import Protocol

from collect.engine import ArmEngine


class RoutingEngine(ArmEngine, Protocol):
    """What routing and serving need beside: the target's name, the tokens that end its answers, the
    positions that it holds, and texts that are no chats."""

    target_name: str
    eos_ids: tuple[int, ...]

    @property
    def context(self) -> int: ...

    def encode_text(self, text: str) -> list[int]: ...
