"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from collect.sweeps.protocols import SweepEngine
from decoders.common.errors import ArmDown
from decoders.records import Request


class RoutingEngine(SweepEngine, Protocol):
    """What routing and serving need besides: the target's name, the tokens that end its answers,
    the positions that it holds, texts that are no chats, and which arms are of no use now."""

    target_name: str
    eos_ids: tuple[int, ...]

    @property
    def context(self) -> int: ...

    def encode_text(self, text: str) -> list[int]: ...

    @property
    def asleep(self) -> Mapping[str, ArmDown]:
        """Why and how long each arm is not to be asked."""

    def why_too_long(self, name: str, prompt_ids: Sequence[int], request: Request) -> str | None:
        """Why the arm is of no use for so long a prompt; None where it is of use."""


@runtime_checkable
class Elsewhere(Protocol):
    """An engine whose arms are servers: with other clients, and with what they keep of prompts."""

    @property
    def requests_under_way(self) -> int:
        """At the busiest of them, as far as is known."""

    def kept(self, prompt_ids: Sequence[int]) -> str | None:
        """The arm that has read the earlier turns of this chat already."""

    def forget_conversations(self) -> None:
        """From now on no conversation stays with an arm."""
