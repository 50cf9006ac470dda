"""The frozen target as a trainer sees it: final states, embeddings, rows of the head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.backends.llama.model import embedded, layer
from decoders.backends.native import LlamaBackend
from decoders.backends.threads import threads
from decoders.backends.weights.packed import dense


class Teacher:
    """embedding: [V, d].
    head: [V, d]; with `states`, all that training reads of a target.
    """

    def __init__(self, target: LlamaBackend) -> None:
        self._target = target
        self.device, self.dtype = target.device, target.dtype
        self.shape, self.hidden = target.shape, target.shape.hidden
        self.vocab_size = target.vocab_size
        self.context = target.shape.context
        self.embedding = dense(target.weights.embedding)
        self.head = dense(target.weights.head)

    def states(self, rows: Tensor) -> Tensor:
        """[B, T] ids, padded on the right -> [B, T, d] after all layers and the final norm."""
        return self.layers(rows, ())[1]

    @torch.no_grad()
    def layers(self, rows: Tensor, after: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """[B, T, d] after each of these layers, and as of `states`. Not in inference mode, as a
        gradient is taken of what reads them."""
        target, kept = self._target, dict[int, Tensor]()
        threads().adapt()
        place = target.positions(0, rows.shape[1])
        h = embedded(rows, self.embedding, self.shape)
        for depth, weights in enumerate(target.weights.layers, 1):
            h = layer(h, weights, target.shape, place)
            if depth in after:
                kept[depth] = h
        return [kept[depth] for depth in after], target.final_norm(h)
