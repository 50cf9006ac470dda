"""The frozen target as a trainer sees it: final states, embeddings, rows of the head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.backends.llama.model import layer
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.packed import dense


class Teacher:
    """embedding: [V, d].
    head: [V, d]; with `states`, all that training reads of a target.
    """

    def __init__(self, target: LlamaBackend) -> None:
        self._target = target
        self.device, self.dtype = target.device, target.dtype
        self.hidden, self.vocab_size = target.shape.hidden, target.vocab_size
        self.context = target.shape.context
        self.embedding = dense(target.weights.embedding)
        self.head = dense(target.weights.head)

    @torch.no_grad()
    def states(self, rows: Tensor) -> Tensor:
        """[B, T] ids, padded on the right -> [B, T, d] after all layers and the final norm. Not in
        inference mode, as a gradient is taken of what reads them."""
        target = self._target
        rope, _ = target.positions(0, rows.shape[1])
        h = F.embedding(rows, self.embedding)
        for weights in target.weights.layers:
            h = layer(h, weights, target.shape, rope, None)
        return target.final_norm(h)
