"""A trained recurrence over the target's final states, as drafter (D23; Zhang et al., "Recurrent
Drafter", 2403.09919).

It goes on from the target's state at the newest position that was read, so that after a round there
is nothing to roll back and nothing to catch up with.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...backends.cpp.recurrent_kernels import KernelSteps
from ...backends.cuda.recorded import WIDEST
from ...backends.cuda.recurrent_recorded import RecordedSteps
from ...protocols import DraftRequest, StateBackend
from ...records import Proposal
from ...sampling.randomness import Generator
from ..chain import draft_chain
from ..device import Chain
from .device import cell
from .head import RecurrentHead


class RecurrentDrafter:
    """Shares the target's states, embedding and head; owns a cell and no cache.

    The target must keep its states before it reads a prompt. The cell runs over each token that
    the target has not read: one, or more inside a cascade. Where the target has read nothing, the
    state is zero.

    calls: steps of the cell.
    parameters: what a step reads, the head's rows for the draft tokens included.
    """

    def __init__(self, target: StateBackend, head: RecurrentHead) -> None:
        self.target, self.head = target, head
        target.keep_states()
        self.context, self.parameters = target.context, head.parameters
        self.calls = 0
        self._nothing = torch.zeros(1, target.state_size, dtype=target.dtype, device=target.device)
        # of a slot among others (backends/batched/slots.py)
        share = getattr(target, "share_step", None)
        self._share_draft = getattr(target, "share_draft", None)
        self._whole = _recorded(target, head) or (head.kernels if share is None else None)
        self._step = (self._whole or head).step if share is None else partial(share, head)

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0

    @torch.inference_mode()
    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        read = self.target.length
        state = self.target.final_states(read - 1, read) if read else self._nothing  # [1, d]
        unread = torch.tensor(context[read:], device=self.target.device)
        self.calls += len(unread)
        if self._whole is not None and asked.likeliest and len(unread) <= WIDEST:
            self.calls += asked.k - 1
            return Proposal(self._whole.draft(state, unread, asked.k))
        if self._share_draft is not None and asked.likeliest and len(unread) == 1:
            self.calls += asked.k - 1
            return Proposal(self._share_draft(self.head, state, unread, asked.k))
        chance, temperature = asked.chance, asked.sampling.temperature
        if isinstance(self._whole, KernelSteps) and asked.drawn and isinstance(chance, Generator):
            self.calls += asked.k - 1
            return Proposal(*self._whole.draw(state, unread, chance.heights(asked.k), temperature))
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
        if not isinstance(self._whole, RecordedSteps):
            return None
        states = self.target.final_states(0, self.context)
        return cell(self._whole, states, self.parameters)

    def commit(self, context: list[int]) -> None:
        """The target's states are all there is."""


def _recorded(target: StateBackend, head: RecurrentHead) -> RecordedSteps | None:
    """Its steps recorded, by the same kernels as the target's passes; None where those are not."""
    passes = getattr(target, "recorded", None)
    if passes is None:
        return None
    if passes.fused is None:
        return RecordedSteps(head, passes.record)
    from ...backends.cuda.recurrent_fused import FusedHead, fits

    return RecordedSteps(FusedHead(head) if fits(head) else head, passes.record)
