"""What is trained: a whole small model, or an exit adapter on a frozen target.

A learner turns a batch into a loss and into agreement (how often its most likely token is the
target's), and saves itself as the folder that `decoders` loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.early_exit import Adapter, AdapterConfig
from decoders.backends.llama import LlamaBackend
from decoders.backends.packed import dense
from decoders.draft_vocab import DraftVocab


class Learner(Protocol):
    """Trainable module, its two measures, and its file format."""

    @property
    def module(self) -> nn.Module: ...

    def hidden(self, ids: Tensor) -> Tensor:
        """[B, T] target ids -> [B, T, d], ready for the head."""
        ...

    def head(self) -> Tensor:
        """[N, d] the matrix that scores draft tokens."""
        ...

    def save(self, folder: Path) -> None: ...


def loss(learner: Learner, vocab: DraftVocab, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over answer tokens that the draft vocabulary holds."""
    draft = torch.where(labels >= 0, vocab.from_target[labels.clamp(min=0)], -100)
    draft = torch.where(draft == vocab.size - 1, -100, draft)
    chosen = draft >= 0
    logits = F.linear(learner.hidden(ids)[chosen], learner.head())
    return F.cross_entropy(logits.float(), draft[chosen])


@torch.no_grad()
def agreement(learner: Learner, vocab: DraftVocab, ids: Tensor, labels: Tensor) -> Tensor:
    """[B, T] bool: the draft's most likely token is the target's. False off the answer."""
    logits = F.linear(learner.hidden(ids), learner.head())[..., : vocab.size - 1]
    return vocab.to_target[logits.argmax(-1)] == labels


class DraftLearner:
    """A transformers causal model over the draft vocabulary."""

    def __init__(
        self, config: dict[str, Any], vocab: DraftVocab, start: Path | None = None
    ) -> None:
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

        self.vocab = vocab
        if start is not None:
            self.module = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        else:
            self.module = LlamaForCausalLM(LlamaConfig(**config, vocab_size=vocab.size))

    def start_embeddings(self, target_embedding: Tensor) -> None:
        """Begin from the target's own embeddings of the draft tokens, cut to the draft's width by
        principal components: similar tokens start out similar."""
        table = self.module.get_input_embeddings().weight
        rows = target_embedding[self.vocab.to_target].float()
        centred = rows - rows.mean(0)
        width = min(table.shape[1], *rows.shape)
        _, _, basis = torch.linalg.svd(centred, full_matrices=False)
        cut = centred @ basis[:width].T
        cut = cut / cut.std() * 0.02
        with torch.no_grad():
            table[:-1, :width] = cut

    def hidden(self, ids: Tensor) -> Tensor:
        out: Tensor = self.module.model(self.vocab.from_target[ids], use_cache=False)[0]
        return out

    def head(self) -> Tensor:
        weight: Tensor = self.module.lm_head.weight
        return weight

    def save(self, folder: Path) -> None:
        model = self.module.to(torch.bfloat16)
        model.save_pretrained(folder)
        model.to(torch.float32)
        self.vocab.save(folder)


class ExitLearner:
    """An adapter on the hidden states after the target's first layers; the target is frozen."""

    def __init__(self, target: LlamaBackend, config: AdapterConfig, vocab: DraftVocab) -> None:
        self.target, self.vocab = target, vocab
        self.module = Adapter.begin(target, config)
        self._head = dense(target.weights.head)[vocab.to_target].clone()
        self._head = torch.cat([self._head, torch.zeros_like(self._head[:1])])

    def start_lens(self, batches: list[Tensor]) -> None:
        """Fit the adapter's lens on a few batches of ids [B, T]."""
        layers, width = self.target.shape.layers, min(b.shape[1] for b in batches)
        ids = torch.cat([b[:, :width] for b in batches])
        states = self.target.lower_batch(ids, self.module.config.exit_layer).float()
        final = self.target.final_norm(self.target.lower_batch(ids, layers))
        self.module.fit_lens(states, final)

    def hidden(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.target.lower_batch(ids, self.module.config.exit_layer)
        out: Tensor = self.module(states)
        return out

    def head(self) -> Tensor:
        return self._head

    def save(self, folder: Path) -> None:
        self.module.save(folder)
        self.vocab.save(folder)
