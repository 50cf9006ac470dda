"""A table as a language model: the fake that tests and examples run on in microseconds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ContextTooLong, DraftpickError
from ..records import Prefilled


class ToyBackend:
    """Next-token logits looked up by the last two tokens: a second-order Markov chain.

    table: [V, V, V], logits after (previous, last); a prompt's first token counts as its own
    predecessor. The embedding is the last row's softmax.
    """

    def __init__(self, table: Tensor, context: int = 512) -> None:
        self.table, self.context = table, context
        self.vocab_size = table.shape[-1]
        self.parameters = table.numel()
        self.device, self.dtype = table.device, table.dtype
        self._ids: list[int] = []

    @classmethod
    def random(cls, vocab: int, seed: int, sharpness: float = 2.0) -> ToyBackend:
        """A float64 chain of random logits; greater sharpness is surer of itself."""
        generator = torch.Generator().manual_seed(seed)
        shape = (vocab, vocab, vocab)
        return cls(sharpness * torch.randn(shape, generator=generator, dtype=torch.float64))

    @property
    def length(self) -> int:
        return len(self._ids)

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        if not prompt_ids:
            raise DraftpickError("the prompt is empty; give it at least one token")
        self._ids = []
        logits = self.extend(torch.tensor(prompt_ids))[-1]
        return Prefilled(logits, logits.softmax(-1).float())

    def extend(self, ids: Tensor) -> Tensor:
        if len(self._ids) + len(ids) > self.context:
            raise ContextTooLong(len(self._ids), len(ids), self.context)
        rows = []
        for token in ids.tolist():
            previous = self._ids[-1] if self._ids else token
            self._ids.append(token)
            rows.append(self.table[previous, token])
        return torch.stack(rows)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self._ids):
            raise ValueError(f"cannot truncate {len(self._ids)} positions to {length}")
        del self._ids[length:]
