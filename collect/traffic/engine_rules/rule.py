"""The seam between a replay and the rules by which engines draft without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Rule(Protocol):
    """Asked from round to round along one answer, then along the next."""

    def begin(self, prompt: Sequence[int]) -> None:
        """An answer to this prompt is about to be written."""

    def draft(self, new: Sequence[int], k: int) -> list[int]:
        """At most k tokens to follow. new: what was written since the last call, at least one
        token: those that were accepted of the last draft and one more."""

    def end(self, new: Sequence[int]) -> Any:
        """What is kept of the answer, once it is complete, for others; None for nothing. new: as of
        `draft`."""
        return None

    def read(self, prompt: Sequence[int], ids: Sequence[int]) -> Any:
        """The same of an answer that nothing was drafted for; None where it depends on drafts."""
        return None

    def remember(self, kept: Any) -> None:
        """Draw on what `end` or `read` gave from now on."""
