"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from collect.sweeps.protocols import SweepEngine
from decoders.common.errors import ArmDown

if TYPE_CHECKING:
    from decoders.records import Request


class RoutingEngine(SweepEngine, Protocol):
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
        """Why and how long each arm is not to be asked."""


@runtime_checkable
class Bounded(Protocol):
    """An engine some of whose arms are of no use beyond some length."""

    def why_too_long(self, name: str, prompt_ids: Sequence[int], request: Request) -> str | None:
        """Why the arm is not to be asked for this prompt; None where it is."""


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
