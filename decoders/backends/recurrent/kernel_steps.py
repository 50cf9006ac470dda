"""A recurrent drafter's steps by the kernels in C++ (cpp/cell.h), for weights in blocks
(blocked.py): a step, or a whole draft, is one call.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..weights.blocked import Blocks
from ..weights.packed import Matrix

LANES = 16  # numbers that the kernels take at once


class KernelSteps:
    """Steps of a cell whose matrices are all in blocks.

    embedding: [V, d] of the target.
    to_target: [N] the target ids that the head's rows stand for.
    weights: in the order of cpp/cell.h.
    """

    def __init__(
        self, embedding: Tensor, to_target: Tensor, weights: list[Tensor], eps: float
    ) -> None:
        self._embedding, self._to_target = embedding.contiguous(), to_target
        self._weights, self._eps = weights, eps

    @classmethod
    def of(
        cls,
        embedding: Tensor,
        to_target: Tensor,
        norms: tuple[Tensor, Tensor],
        head: Matrix,
        blocks: Iterable[tuple[Tensor, Matrix, Matrix]],
        eps: float,
    ) -> KernelSteps | None:
        """None where the kernels do not run such a cell.

        norms: [d] each, of embeddings and in front of the head.
        blocks: each one's norm, gate_up and down.
        """
        weights = [*norms]
        for part in (head, *(part for block in blocks for part in block)):
            if isinstance(part, Blocks):
                weights += part.stored
            elif isinstance(part, Tensor) and part.ndim == 1:
                weights.append(part)
            else:
                return None
        if embedding.dtype != torch.bfloat16 or embedding.shape[1] % LANES:
            return None
        return cls(embedding, to_target, weights, eps)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        state, logits = torch.ops.draftpick.cell_step(
            state, token, self._embedding, self._weights, self._eps
        )
        return state, logits

    def draft(self, state: Tensor, ids: Tensor, k: int) -> Tensor:
        """Draft k tokens for any number of `ids`."""
        drafted: Tensor = torch.ops.draftpick.cell_draft(
            state, ids, self._to_target, k, self._embedding, self._weights, self._eps
        )
        return drafted

    def draw(
        self, state: Tensor, ids: Tensor, heights: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Draft tokens drawn at a temperature by the next of `heights` [k] (as `Generator.heights`
        gives them); also returns what they were drawn from, [k, V] over the target's ids."""
        drafted, chances = torch.ops.draftpick.cell_draw(
            state,
            ids,
            self._to_target,
            heights,
            temperature,
            self._embedding,
            self._weights,
            self._eps,
        )
        return drafted, chances
