"""The seam between the loop and whatever guesses the next tokens."""

from __future__ import annotations

from typing import Protocol

from ..chance import Chance
from ..records import Proposal, Sampling


class Drafter(Protocol):
    """Guesses for one sequence at a time. calls: forward passes made since `reset`. context: the
    longest sequence it can follow."""

    parameters: int
    context: int
    calls: int

    def reset(self, prompt_ids: list[int]) -> None:
        """A new query; the target has just read its prompt (an encoder-decoder's source)."""
        ...

    def propose(
        self,
        context: list[int],
        k: int,
        sampling: Sampling,
        chance: Chance,
        min_confidence: float = 0.0,
    ) -> Proposal:
        """At most k >= 1 tokens to follow `context`: the prompt and the answer so far. An
        encoder-decoder's begins with its start token instead; only `reset` tells the source."""
        ...

    def commit(self, context: list[int]) -> None:
        """`context` is what stands after the round; what was drafted beyond it is forgotten. A
        drafter that sat out some rounds catches up here, not in `propose`."""
        ...
