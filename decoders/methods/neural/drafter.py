"""A small model of its own as drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...device_rounds import WIDEST, DeviceSequence, RecordedModel
from ...protocols import Backend, DraftRequest, EncoderDecoder, RequestScope
from ...records import Proposal
from ...requests.reading import PromptReader
from ...sampling.draft_vocab import DraftVocab
from ..chain import LATER, draft_chain, roll_back

if TYPE_CHECKING:
    from ..device import Chain


class NeuralDrafter:
    """Any backend that shares the target's tokenizer, or a part of its vocabulary (`vocab`).

    prompt_window: tokens of a prompt that it reads, the last ones; None for all.
    """

    def __init__(
        self,
        backend: Backend,
        vocab: DraftVocab | None = None,
        prompt_window: int | None = None,
    ) -> None:
        self.backend, self.vocab, self.prompt_window = backend, vocab, prompt_window
        self._skipped = 0  # tokens of the prompt before those
        self.parameters = backend.parameters
        self.context = backend.context
        self.calls = 0
        self._device = backend.device
        self._model = backend if isinstance(backend, RecordedModel) else None
        self._prompts = PromptReader(backend, None if vocab is None else vocab.translate)
        self._scope = RequestScope()

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope

    def reset(self, prompt_ids: list[int]) -> None:
        whole = self._recorded or isinstance(self.backend, EncoderDecoder)
        window = None if whole else self.prompt_window
        self._skipped = 0 if window is None else max(0, len(prompt_ids) - window)
        self._prompts.read(prompt_ids[self._skipped :], self._scope)
        self.calls = 1

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        held = self._skipped + self.backend.length
        unread = torch.tensor(context[held:], device=self._device)
        if self._recorded and asked.likeliest and len(unread) <= WIDEST:
            return self._replayed(unread, asked.k)
        proposal, steps = draft_chain(self._feed(unread), self._feed, context, self.vocab, asked)
        self.calls += 1 + steps
        return proposal

    def round_draft(self) -> Chain | None:
        from ..device import Chain

        passes = None if self._model is None else self._model.recorded
        if passes is None:
            return None
        vocab = self.vocab

        def make(line: DeviceSequence, k: int, unread: int) -> Tensor:
            def choose(logits: Tensor, ahead: int) -> Tensor:
                if vocab is None:
                    return line.drafted(logits, ahead, None)
                own = logits[:, : vocab.size - 1]
                return vocab.from_target[line.drafted(own, ahead, vocab.to_target)]

            ids = line.newest(unread)
            ids = ids if vocab is None else vocab.from_target[ids]
            start = line.start - (unread - 1)
            drafted = passes.drafted(ids, max(k, 1), choose, start, line.read)[:k]
            return drafted if vocab is None else vocab.to_target[drafted]

        return Chain(make, self.parameters, self.reset)

    def commit(self, context: list[int]) -> None:
        context = context[self._skipped :]
        self.calls += roll_back(self.backend, context, self._feed, LATER)
        self._prompts.holds(context)

    def logits(self, ids: Tensor) -> Tensor:
        """Append target ids [T]; [T, N] logits over draft tokens, row i for what follows ids[i]."""
        if self.vocab is None:
            return self.backend.extend(ids)
        return self.backend.extend(self.vocab.from_target[ids])[:, : self.vocab.size - 1]

    @property
    def _recorded(self) -> bool:
        return self._model is not None and self._model.recorded is not None

    def _replayed(self, unread: Tensor, k: int) -> Proposal:
        """The k most likely tokens in turn, as one recorded pass."""
        assert self._model is not None
        self.calls += k
        if self.vocab is None:
            return Proposal(self._model.draft(unread, k, self.backend.vocab_size))
        ids = self._model.draft(self.vocab.from_target[unread], k, self.vocab.size - 1)
        return Proposal(self.vocab.to_target[ids])

    def _feed(self, ids: Tensor) -> Tensor:
        return self.logits(ids)[-1]


class Eagle3Drafter(NeuralDrafter):
    """A draft model's chain, from a head over its target's states. A class of its own, since what
    it drafts along a known answer depends on where each draft began."""
