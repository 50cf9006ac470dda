"""A model over a part of the target's vocabulary, as seen in the target's ids."""

from __future__ import annotations

import torch
from torch import Tensor

from ..protocols import Backend
from ..records import Prefilled
from ..sampling.draft_vocab import DraftVocab


class MappedBackend:
    """What the model cannot say has logit -inf. It reads any target id; what it does not know is
    its "other". Drafters map on their own and so never widen a row; a model that verifies needs
    its whole distribution in the target's ids.
    """

    def __init__(self, backend: Backend, vocab: DraftVocab) -> None:
        self.backend, self.vocab = backend, vocab
        self.vocab_size = vocab.target_vocab
        self.parameters, self.context = backend.parameters, backend.context
        self.device, self.dtype = backend.device, backend.dtype

    @property
    def length(self) -> int:
        return self.backend.length

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        ids = torch.tensor(prompt_ids, dtype=torch.int64, device=self.device)
        read = self.backend.prefill(self.vocab.from_target[ids].tolist())
        return Prefilled(self._widened(read.logits), read.embedding, read.prefill_s)

    def extend(self, ids: Tensor) -> Tensor:
        return self._widened(self.backend.extend(self.vocab.from_target[ids]))

    def truncate(self, length: int) -> None:
        self.backend.truncate(length)

    def _widened(self, logits: Tensor) -> Tensor:
        """[..., N] over draft ids -> [..., V] over target ids."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        wide[..., self.vocab.to_target] = logits[..., : self.vocab.size - 1]
        return wide
