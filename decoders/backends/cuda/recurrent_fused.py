"""A recurrent drafter's step by the fused kernels of fused.py: eight launches for two blocks and
the head, instead of some twenty. For one sequence, inside a recording (recurrent_recorded.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...methods.recurrent.head import RecurrentHead
from ..weights.int4 import GROUP
from .fused import kept, launcher


def fits(head: RecurrentHead) -> bool:
    """Whether the kernels can run a cell of these sizes."""
    return head.dtype == torch.bfloat16 and not (
        head.config.hidden % GROUP or head.config.width % GROUP
    )


class FusedHead:
    """As RecurrentHead, for one sequence: the same weights, laid out for the kernels."""

    def __init__(self, head: RecurrentHead) -> None:
        self.config, self.vocab = head.config, head.vocab
        self.device, self.dtype = head.device, head.dtype
        self._plain = head
        self._blocks = [(b.norm, kept(b.gate_up), kept(b.down)) for b in head.blocks]
        self._head = kept(head.head)
        self._launch = launcher(head.device)
        self._both = head.norm.new_empty(1, 2 * head.config.hidden)
        self._opened = head.norm.new_empty(1, head.config.width)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """state: [1, d].
        token: [1] the target id that follows it.

        Returns the next state [1, d], and logits [1, N] over draft tokens.
        """
        state = self.advance(state, token)
        logits = state.new_empty(1, self._head.outputs)
        self._launch.added(state, self._head, None, logits, self._plain.norm, self.config.eps)
        return state, logits

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """The next state alone."""
        eps, d, made = self.config.eps, self.config.hidden, torch.empty_like(state)
        launch, both, opened = self._launch, self._both, self._opened
        state, embedded = state.contiguous(), self._plain.embed(token)
        (norm, gate_up, down), *rest = self._blocks
        launch.normed(state, norm, eps, both[:, :d])
        launch.normed(embedded, self._plain.embed_norm, eps, both[:, d:])
        launch.gated(both, None, eps, gate_up, opened)
        launch.added(opened, down, state, made)
        for norm, gate_up, down in rest:
            launch.gated(made, norm, eps, gate_up, opened)
            launch.added(opened, down, made, made)
        return made
