"""A small model of its own as drafter (D2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...backends.cuda.recorded import WIDEST
from ...backends.native import LlamaBackend
from ...protocols import Backend, DraftRequest
from ...records import Proposal
from ...requests.reading import PromptReader
from ...sampling.draft_vocab import DraftVocab
from ..catch_up import LATER, roll_back
from ..chain import draft_chain
from ..device import Chain
from .device import model


class NeuralDrafter:
    """Any backend that shares the target's tokenizer, or a part of its vocabulary (`vocab`)."""

    def __init__(self, backend: Backend, vocab: DraftVocab | None = None) -> None:
        self.backend, self.vocab = backend, vocab
        self.parameters = backend.parameters
        self.context = backend.context
        self.calls = 0
        self._device = backend.device
        self._prompts = PromptReader(backend, None if vocab is None else vocab.translate)

    def reset(self, prompt_ids: list[int]) -> None:
        self._prompts.read(prompt_ids)
        self.calls = 1

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        unread = torch.tensor(context[self.backend.length :], device=self._device)
        if asked.likeliest and len(unread) <= WIDEST:
            recorded = self._recorded(unread, asked.k)
            if recorded is not None:
                return recorded
        proposal, steps = draft_chain(self._feed(unread), self._feed, context, self.vocab, asked)
        self.calls += 1 + steps
        return proposal

    def round_draft(self) -> Chain | None:
        backend = self.backend
        if not isinstance(backend, LlamaBackend) or backend.recorded is None:
            return None
        known = backend.vocab_size if self.vocab is None else self.vocab.size - 1
        return model(backend.recorded, self.vocab, known, self.parameters, self.reset)

    def commit(self, context: list[int]) -> None:
        self.calls += roll_back(self.backend, context, self._feed, LATER)
        self._prompts.holds(context)

    def logits(self, ids: Tensor) -> Tensor:
        """Append target ids [T]; [T, N] logits over draft tokens, row i for what follows ids[i]."""
        if self.vocab is None:
            return self.backend.extend(ids)
        return self.backend.extend(self.vocab.from_target[ids])[:, : self.vocab.size - 1]

    def _recorded(self, unread: Tensor, k: int) -> Proposal | None:
        """The k most likely tokens in turn, as one recorded pass; None where passes are not."""
        if not isinstance(self.backend, LlamaBackend) or self.backend.recorded is None:
            return None
        self.calls += k
        if self.vocab is None:
            return Proposal(self.backend.draft(unread, k, self.backend.vocab_size))
        ids = self.backend.draft(self.vocab.from_target[unread], k, self.vocab.size - 1)
        return Proposal(self.vocab.to_target[ids])

    def _feed(self, ids: Tensor) -> Tensor:
        return self.logits(ids)[-1]
