"""The target's own first layers, an adapter and its head, as drafter (D18)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.early_exit import Adapter
from ..backends.llama import LlamaBackend
from ..backends.llama_model import packed_layer, through
from ..backends.packed import dense, linear, pack
from ..chance import Chance
from ..draft_vocab import DraftVocab
from ..records import Proposal, Sampling
from .chain import draft_chain


class EarlyExitDrafter:
    """Shares the target's lower layers, their KV and its head; owns only the adapter and its cache.

    The target must have been opened at the adapter's layer before it reads a prompt.
    """

    def __init__(self, target: LlamaBackend, adapter: Adapter, vocab: DraftVocab | None) -> None:
        self.target, self.adapter, self.vocab = target, adapter, vocab
        target.open_exit(adapter.config.exit_layer)
        head = dense(target.weights.head)
        self.context = target.context
        self.head = target.weights.head if vocab is None else pack(head[vocab.to_target])
        self.blocks = [packed_layer(w) for w in adapter.weights()]
        self._cache = target.new_cache(len(self.blocks))
        self.parameters = sum(p.numel() for p in adapter.parameters())
        self.calls = 0
        self._read = 0  # positions that the adapter's cache holds

    def reset(self, prompt_ids: list[int]) -> None:
        self._read, self.calls = 0, 1
        self._catch_up(self.target.length)

    @torch.inference_mode()
    def propose(
        self,
        context: list[int],
        k: int,
        sampling: Sampling,
        chance: Chance,
        min_confidence: float = 0.0,
        needs_raw: bool = False,
    ) -> Proposal:
        newest = torch.tensor(context[self.target.length :], device=self.target.device)
        first = self._step(newest)
        proposal, steps = draft_chain(
            first, self._step, k, context, self.vocab, sampling, chance, min_confidence, needs_raw
        )
        self.calls += 1 + steps
        return proposal

    def commit(self, context: list[int]) -> None:
        self._read = min(self._read, self.target.length)
        if self.target.length - self._read > 1:  # sat out; one position is read with the next step
            self._catch_up(self.target.length)
            self.calls += 1

    def _step(self, ids: Tensor) -> Tensor:
        self.target.lower(ids)
        return linear(self._catch_up(self.target.ahead), self.head)

    @torch.inference_mode()
    def _catch_up(self, end: int) -> Tensor:
        """Adapter over the positions not yet read, up to `end`; [d] at the last, for the head."""
        start = self._read
        h = self.target.exit_hidden(start, end)
        place = self.target.positions(start, end - start)
        mask = place[1]
        read = end if mask is None else mask.shape[-1]
        slots = self._cache.slots(start, end - start, read)
        h = through(h, self.blocks, self.target.shape, place, slots)
        self._read = end
        return self.adapter.read(h[-1])
