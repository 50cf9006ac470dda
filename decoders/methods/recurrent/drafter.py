"""A trained recurrence over the target's final states, as drafter (Zhang et al., "Recurrent
Drafter", 2403.09919).

It goes on from the target's state at the newest position that was read, so that after a round there
is nothing to roll back and nothing to catch up with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ...device_rounds import DeviceSequence, DraftChooser
from ...protocols import DraftRequest, StateBackend
from ...records import Proposal
from ...sampling.draft_vocab import DraftVocab
from ...sampling.race import CellTokens
from ...sampling.randomness import Generator
from ..chain import draft_chain

if TYPE_CHECKING:
    from ..device import Chain


class Steps(Protocol):
    """Steps of a cell of which one call makes a whole draft."""

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """state: [n, d].
        token: [n] target ids, each the one that follows its state.

        Returns the next states [n, d], and logits [n, N] over draft tokens for what follows.
        """

    def draft(self, state: Tensor, ids: Tensor, wanted: CellTokens) -> Tensor | None:
        """From `state` [1, d], read `ids` [U], then draft what is wanted, [k] target ids; None
        where these steps cannot."""


@runtime_checkable
class RecordedSteps(Steps, Protocol):
    """Steps that can be part of other recordings."""

    def drafted(self, state: Tensor, ids: Tensor, k: int, choose: DraftChooser) -> Tensor:
        """Draft within a recording."""


class Cell(Protocol):
    """A trained cell at work, with the head's rows of the draft tokens.

    parameters: what a step reads.
    vocab: the draft tokens.
    """

    parameters: int
    vocab: DraftVocab

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]: ...

    def drafts(self, state: Tensor, token: Tensor, wanted: Sequence[CellTokens]) -> list[Tensor]:
        """What is wanted of each of the n sequences, target ids. state, token: as of `step`."""

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """The next states alone."""

    def steps_on(self, target: StateBackend) -> Steps | None:
        """Its steps as calls of which one makes a whole draft; None where none can."""


@runtime_checkable
class SharesCells(Protocol):
    """A target whose answers' drafters step together with others of the same cell.

    share_step: as `Cell.step` of the cell that it is given; None where it steps alone.
    share_draft: as `Cell.drafts` of one sequence, likewise.
    """

    share_step: Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]] | None
    share_draft: Callable[[Any, Tensor, Tensor, Any], Tensor] | None


class RecurrentDrafter:
    """Shares the target's states, embedding and head; owns a cell and no cache.

    The target must keep its states before it reads a prompt. The cell runs over each token that
    the target has not read: one, or more inside a cascade. Where the target has read nothing, the
    state is zero.

    calls: steps of the cell.
    parameters: what a step reads, the head's rows for the draft tokens included.
    """

    def __init__(self, target: StateBackend, head: Cell) -> None:
        self.target, self.head = target, head
        target.keep_states()
        self.context, self.parameters = target.context, head.parameters
        self.calls = 0
        self._nothing = torch.zeros(1, target.state_size, dtype=target.dtype, device=target.device)
        others = target if isinstance(target, SharesCells) else None
        share = None if others is None else others.share_step
        self._share_draft = None if others is None else others.share_draft
        whole = head.steps_on(target)
        self._recorded = whole if isinstance(whole, RecordedSteps) else None
        self._whole = whole if share is None else self._recorded
        self._step = (self._whole or head).step if share is None else partial(share, head)

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0

    @torch.inference_mode()
    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        read = self.target.length
        state = self.target.final_states(read - 1, read) if read else self._nothing  # [1, d]
        unread = torch.tensor(context[read:], device=self.target.device)
        self.calls += len(unread)
        wanted, made = _in_turn(asked, len(context)), None
        if wanted is not None:
            if self._whole is not None:
                made = self._whole.draft(state, unread, wanted)
            if made is None and self._share_draft is not None and len(unread) == 1:
                made = self._share_draft(self.head, state, unread, wanted)
        if made is not None:
            self.calls += asked.k - 1
            return Proposal(made)
        for token in unread[:-1].unsqueeze(1):
            state = self.head.advance(state, token)

        def step(token: Tensor) -> Tensor:
            nonlocal state
            state, logits = self._step(state, token)  # [1, d], [1, N]
            return logits[0]

        proposal, steps = draft_chain(step(unread[-1:]), step, context, self.head.vocab, asked)
        self.calls += steps
        return proposal

    def round_draft(self) -> Chain | None:
        from ..device import Chain

        steps = self._recorded
        if steps is None:
            return None
        states = self.target.final_states(0, self.context)

        def make(line: DeviceSequence, k: int, unread: int) -> Tensor:
            state = states.index_select(0, line.start - 1)
            return steps.drafted(state, line.newest(1), k, line.drafted)

        return Chain(make, self.parameters)

    def commit(self, context: list[int]) -> None:
        """The target's states are all there is."""


def _in_turn(asked: DraftRequest, place: int) -> CellTokens | None:
    """What is wanted, where it depends on the cell's scores alone."""
    if asked.likeliest:
        return CellTokens(asked.k)
    if asked.clocked and isinstance(asked.chance, Generator):
        return CellTokens(asked.k, asked.sampling.temperature, asked.chance.key, place)
    return None
