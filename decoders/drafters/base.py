"""The seam between the loop and whatever guesses the next tokens."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..backends.base import Backend, opening
from ..chance import Chance
from ..records import Proposal, Sampling


class Drafter(Protocol):
    """Guesses for one sequence at a time. parameters: weights read for one drafted token, those
    that it shares with the target among them. calls: forward passes made since `reset`. context:
    the longest sequence it can follow."""

    @property
    def parameters(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def calls(self) -> int: ...

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
        needs_raw: bool = False,
    ) -> Proposal:
        """At most k >= 1 tokens to follow `context`: the prompt and the answer so far. An
        encoder-decoder's begins with its start token instead; only `reset` tells the source.

        needs_raw: the verifier wants `Proposal.raw`.
        """
        ...

    def commit(self, context: list[int]) -> None:
        """`context` is what stands after the round; what was drafted beyond it is forgotten. A
        drafter that sat out some rounds catches up here, not in `propose`. Inside a cascade
        what a draft model let stand may fall before the target: a later `context` may be shorter,
        or go on otherwise from some point after the target's last round."""
        ...


@runtime_checkable
class Composed(Protocol):
    """A drafter whose passes do not all cost the same. work: as the function of that name."""

    @property
    def work(self) -> int: ...


def work(drafter: Drafter) -> int:
    """Its passes since `reset`, each counted with the parameters that it read."""
    if isinstance(drafter, Composed):
        return drafter.work
    return drafter.calls * drafter.parameters


def begin(drafter: Drafter, target: Backend, prompt_ids: list[int]) -> None:
    """Make ready to propose the answer's first token. The loop never asks for it, the prompt's own
    pass gives it there; here the prompt's last token counts as not yet read, as the newest token
    before any round."""
    drafter.reset(prompt_ids)
    start = opening(target, prompt_ids)
    target.truncate(len(start) - 1)
    drafter.commit(start)
