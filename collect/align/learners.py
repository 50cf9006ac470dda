"""What is trained: a small model, an exit adapter on a frozen target, or an exit with a copy of it.

A learner turns a batch into a loss and into agreement (how often its most likely token is the
target's), and saves itself as the folder that `decoders` loads.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.llama.exit_head import AdapterConfig, Lens
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers import pretrained
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend, head_scale
from decoders.backends.transformers.seq2seq_exit import plain_lens
from decoders.backends.weights.packed import dense
from decoders.methods.early_exit.head import Adapter
from decoders.models.hub import is_text
from decoders.models.loaders import is_encoder_decoder
from decoders.sampling.draft_vocab import DraftVocab

from .states import causal_states, seq2seq_states


class Learner(ABC):
    """A module that drafts over `vocab`, what training lowers, and its file format."""

    module: Any
    vocab: DraftVocab

    @abstractmethod
    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Ready for the head: [n, d], one for each of the n labels (not -100), row by row."""

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    def head(self) -> Tensor:
        """[N, d] the matrix that scores draft tokens; of a whole model its own."""
        weight: Tensor = self.module.lm_head.weight
        return weight

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over answer tokens that the draft vocabulary holds: [] for ids and
        labels [B, T], as in `Batch`."""
        draft = self.vocab.from_target[labels[labels >= 0]]  # [n]
        known = draft < self.vocab.size - 1
        logits = F.linear(self.hidden(ids, labels)[known], self.head())
        return F.cross_entropy(logits.float(), draft[known])


@torch.no_grad()
def agreement(learner: Learner, ids: Tensor, labels: Tensor) -> Tensor:
    """[B, T] bool: the draft's most likely token is the target's. False off the answer."""
    vocab = learner.vocab
    logits = F.linear(learner.hidden(ids, labels), learner.head())[..., : vocab.size - 1]
    hits = torch.zeros_like(labels, dtype=torch.bool)
    hits[labels >= 0] = vocab.to_target[logits.argmax(-1)] == labels[labels >= 0]
    return hits


class DraftLearner(Learner):
    """A transformers causal model over the draft vocabulary."""

    def __init__(
        self, config: dict[str, Any], vocab: DraftVocab, start: Path | None = None
    ) -> None:
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

        self.vocab = vocab
        if start is not None:
            self.module = pretrained.load(AutoModelForCausalLM, start, torch.float32)
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

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.module.model(self.vocab.from_target[ids], use_cache=False)[0]
        return out[labels >= 0]

    def save(self, folder: Path) -> None:
        save_model(self.module, folder)
        self.vocab.save(folder)


class _AdapterLearner(Learner):
    """An adapter on states of a frozen target, before the target's head.

    rows: [N - 1, d] of that head, of the draft tokens.
    """

    def __init__(self, module: Lens, vocab: DraftVocab, rows: Tensor) -> None:
        self.module, self.vocab = module, vocab
        self._head = torch.cat([rows, torch.zeros_like(rows[:1])])

    def head(self) -> Tensor:
        return self._head

    def save(self, folder: Path) -> None:
        self.module.save(folder)
        self.vocab.save(folder)


class ExitLearner(_AdapterLearner):
    """An adapter on the hidden states after the target's first layers."""

    def __init__(self, target: LlamaBackend, config: AdapterConfig, vocab: DraftVocab) -> None:
        self.target = target
        rows = dense(target.weights.head)[vocab.to_target]
        super().__init__(Adapter.begin(target, config), vocab, rows)

    def start_lens(self, batches: list[Tensor]) -> None:
        """Fit the adapter's lens on a few batches of ids [B, T]."""
        layers, width = self.target.shape.layers, min(b.shape[1] for b in batches)
        ids = torch.cat([b[:, :width] for b in batches])
        states = self.target.lower_batch(ids, self.module.config.exit_layer).float()
        final = self.target.final_norm(self.target.lower_batch(ids, layers))
        self.module.fit_lens(states, final)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.target.lower_batch(ids, self.module.config.exit_layer)
        out: Tensor = self.module(states)
        return out[labels >= 0]


class LensLearner(_AdapterLearner):
    """A lens on the states after an encoder-decoder's first layers."""

    def __init__(self, target: HFSeq2SeqBackend, exit_layer: int, vocab: DraftVocab) -> None:
        self.target = target
        lens = plain_lens(target, exit_layer)
        nn.init.ones_(lens.norm)
        rows = target.model.lm_head.weight.detach()[vocab.to_target] * target.head_scale
        super().__init__(lens, vocab, rows)

    def start_lens(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fit the lens on a few batches of ids and labels [B, T]."""
        pairs = [self._states(ids, labels) for ids, labels in batches]
        states, final = (torch.cat(part) for part in zip(*pairs, strict=True))
        self.module.fit_lens(states, final)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.module(self._states(ids, labels)[0])
        return out

    @torch.no_grad()
    def _states(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[n, d] after the exit's layer, and after the last."""
        states, valid = seq2seq_states(self.target.model, ids, labels)
        return states[self.module.config.exit_layer][valid], states[-1][valid]


class JointExitLearner(Learner):
    """A copy of the target, all of it trained so that it can be left after `exit_layer` layers by
    its own norm and head (Kim et al., Speculative Decoding with Big Little Decoder, section 4.4).

    The copy is a target of its own: what it writes is no longer what the first one wrote.

    every_layer: train it to be left after any layer (Schuster et al., Confident Adaptive Language
        Modeling, section 3.1).
    """

    def __init__(
        self, folder: Path, exit_layer: int, vocab: DraftVocab, every_layer: bool = False
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        two_parts = is_encoder_decoder(folder)
        kind = AutoModelForSeq2SeqLM if two_parts else AutoModelForCausalLM
        model: Any = pretrained.load(kind, folder, torch.float32)
        self.module = model
        self.vocab, self._folder, self._exit_layer = vocab, folder, exit_layer
        self._every_layer = every_layer
        self._states = seq2seq_states if two_parts else causal_states
        self._norm = model.decoder.final_layer_norm if two_parts else model.model.norm
        self._scale = head_scale(model.config) if two_parts else 1.0

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean of the exit's and the last layer's, each over the target's whole vocabulary;
        with every_layer that of all of them, the i-th weighed by i."""
        chosen = labels[labels >= 0]
        states, valid = self._states(self.module, ids, labels)
        exits = range(1, len(states) - 1) if self._every_layer else [self._exit_layer]
        read = [self._norm(states[layer][valid]) for layer in exits] + [states[-1][valid]]
        losses = torch.stack(
            [F.cross_entropy(self.module.lm_head(h * self._scale).float(), chosen) for h in read]
        )
        weights = torch.ones_like(losses)
        if self._every_layer:
            weights = torch.arange(1.0, len(losses) + 1, device=losses.device)
        return (weights * losses).sum() / weights.sum()

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        states, valid = self._states(self.module, ids, labels)
        read: Tensor = self._norm(states[self._exit_layer][valid]) * self._scale
        return read

    def head(self) -> Tensor:
        rows = self.module.lm_head.weight[self.vocab.to_target]
        return torch.cat([rows, torch.zeros_like(rows[:1])])

    def save(self, folder: Path) -> None:
        """The exit: an adapter that adds nothing to the copy's norm and head."""
        norm = self._norm.weight.detach()
        lens = torch.eye(len(norm), device=norm.device)
        config = AdapterConfig(self._exit_layer, blocks=0)
        Lens(config, norm, lens, self._norm.variance_epsilon).save(folder)
        self.vocab.save(folder)

    def save_target(self, folder: Path) -> None:
        """The copy, with the tokenizer and chat template of the target it was made from."""
        save_model(self.module, folder)
        copy_texts(self._folder, folder)


def save_model(model: Any, folder: Path) -> None:
    """A transformers model that is trained in float32, in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(folder)
    model.to(torch.float32)


def copy_texts(source: Path, folder: Path) -> None:
    """The tokenizer and chat template of a model; what `folder` has already stays."""
    for path in (*source.glob("*.*"), *source.glob("additional_chat_templates/*")):
        name = path.relative_to(source)
        place = folder / name
        if is_text(name.as_posix()) and name.name != "card.json" and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
