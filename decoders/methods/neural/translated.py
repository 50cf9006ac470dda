"""A small model with another tokenizer than the target's as drafter (Timor et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...earlier.prefixes import agreeing
from ...protocols import Backend, DraftRequest, RequestScope
from ...records import Proposal, Sampling
from ...requests.reading import PREFILL_CHUNK, PromptReader
from ...sampling.draft_vocab import DraftVocab
from ..chain import LATER, draft_chain

By = Literal["auto", "text", "tokens"]


class Translator(Protocol):
    """Carries drafts over between two tokenizers."""

    def drafter_ids(self, context: list[int]) -> list[int]: ...

    def target_ids(self, context: list[int], drafted: list[int]) -> list[int]: ...


class TranslatedDrafter:
    """Reads the target's text by its own tokenizer.

    by: "text" drafts the model's likeliest tokens and encodes their text for the target: a
        deterministic draft, exact at any temperature. "tokens" drafts tokens that both
        vocabularies have, by the model's distribution over those alone. "auto" takes text at
        temperature 0 and tokens above it.
    shared: [N - 1] the drafter's ids of the tokens that both have, in the order of `vocab`.
    vocab: those tokens in the target's ids.
    """

    def __init__(
        self,
        backend: Backend,
        translator: Translator,
        shared: list[int],
        vocab: DraftVocab,
        by: By = "auto",
    ) -> None:
        self.backend, self.by, self.vocab = backend, by, vocab
        self.parameters, self.context = backend.parameters, backend.context
        self.calls = 0
        self._translator = translator
        self._shared = torch.tensor(shared, device=backend.device)
        self._held: list[int] = []  # the drafter's ids that its cache holds
        self._prompts = PromptReader(backend)
        self._scope = RequestScope()

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope

    def reset(self, prompt_ids: list[int]) -> None:
        self._prompts.holds(self._held)
        self.calls, self._held = 0, []
        ids = self._translator.drafter_ids(prompt_ids)
        if self._room(ids) < 0 or not ids:
            self.backend.truncate(0)
            return
        self._prompts.read(ids, self._scope)
        self._held = ids
        self.calls = 1

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        ids = self._translator.drafter_ids(context)
        most = min(asked.k, self._room(ids))
        if most < 1 or not ids:
            return Proposal(self._tensor([]))
        asked = replace(asked, k=most)
        kept = self._keep(ids)
        first = self._read(ids[kept:])
        as_text = self.by == "text" or (self.by == "auto" and asked.sampling.greedy)
        if as_text and not asked.needs_raw:
            return self._text(first, context, asked)
        return self._tokens(first, context, asked)

    def commit(self, context: list[int]) -> None:
        ids = self._translator.drafter_ids(context)
        if self._room(ids) < 0 or not ids:
            return
        kept = self._keep(ids)
        if len(ids) - kept > LATER:
            self._read(ids[kept:-1])

    # -- the two ways -----------------------------------------------------------------------------

    def _text(self, first: Tensor, context: list[int], asked: DraftRequest) -> Proposal:
        """A draft is a function of the context, so it has no distribution to hand on."""
        # without the grammar, which is in target ids
        likeliest = replace(asked, sampling=Sampling(), grammar=None, needs_probs=False)
        drafted, steps = draft_chain(first, self._extend, [], None, likeliest)
        ids = drafted.ids.tolist()
        self._held += ids[:steps]
        return Proposal(self._tensor(self._translator.target_ids(context, ids)[: asked.k]))

    def _tokens(self, first: Tensor, context: list[int], asked: DraftRequest) -> Proposal:
        def own(tokens: Tensor) -> Tensor:
            return self._shared[self.vocab.from_target[tokens]]

        def step(token: Tensor) -> Tensor:
            return self._extend(own(token))[self._shared]

        proposal, steps = draft_chain(first[self._shared], step, context, self.vocab, asked)
        self._held += own(proposal.ids[:steps]).tolist()
        return proposal

    # -- the cache --------------------------------------------------------------------------------

    def _room(self, ids: list[int]) -> int:
        """How many tokens may be drafted after `ids`."""
        return self.backend.context - len(ids)

    def _keep(self, ids: list[int]) -> int:
        """Forget what the cache holds that is not of `ids`, and the last of them."""
        kept = min(agreeing(self._held, ids), len(ids) - 1)
        self.backend.truncate(kept)
        del self._held[kept:]
        return kept

    def _read(self, ids: list[int]) -> Tensor:
        """[N] logits for what follows `ids`, appended to the cache."""
        self._held += ids
        for part in torch.split(self._tensor(ids), PREFILL_CHUNK):
            logits = self._extend(part)
        return logits

    def _extend(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return self.backend.extend(ids)[-1]

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.backend.device)
