"""The seam between an engine and a way to answer: what every built arm can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .backends.base import Backend
from .chance import Chance
from .drafters.base import Drafter
from .records import DecodeResult, Prefilled, Request
from .stopping import Stopper

Emit = Callable[[list[int]], None]


class Strategy(Protocol):
    """parameters: what it runs beside the target. context: the longest sequence it can follow."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> int: ...

    @property
    def context(self) -> int: ...

    def decode(
        self,
        target: Backend,
        prompt_ids: list[int],
        prefilled: Prefilled,
        request: Request,
        stopper: Stopper,
        chance: Chance,
        emit: Emit,
    ) -> DecodeResult:
        """Answer one prompt that `target` has just read: it holds the positions of `opening`.

        emit: called with the new tokens of each round, as soon as they stand. The result's `text`
        is the stopper's.
        """
        ...


@runtime_checkable
class Drafts(Protocol):
    """A strategy with a part that guesses or writes beside the target."""

    @property
    def drafter(self) -> Drafter: ...
