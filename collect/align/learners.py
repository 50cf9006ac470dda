"""What is trained: a small model, an exit adapter on a frozen target, or an exit with a copy of it.

A learner turns a batch into a loss and into agreement (how often its most likely token is the
target's), and saves itself as the folder that `decoders` loads.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.early_exit import Adapter
from decoders.backends.llama.exit_head import AdapterConfig, Lens
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers import pretrained
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend, head_scale
from decoders.backends.transformers.seq2seq_exit import plain_lens
from decoders.backends.weights.packed import dense
from decoders.models.hub import is_text
from decoders.models.loaders import is_encoder_decoder
from decoders.sampling.draft_vocab import DraftVocab

from .states import causal_layers, causal_states, seq2seq_layers, seq2seq_states


class Learner(Protocol):
    """Trainable module, its two measures, and its file format."""

    @property
    def module(self) -> nn.Module: ...

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """What training lowers: [] for ids and labels [B, T], as in `Batch`."""
        ...

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Ready for the head: [n, d], one for each of the n labels (not -100), row by row."""
        ...

    def head(self) -> Tensor:
        """[N, d] the matrix that scores draft tokens."""
        ...

    def save(self, folder: Path) -> None: ...


def draft_loss(learner: Learner, vocab: DraftVocab, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over answer tokens that the draft vocabulary holds."""
    draft = vocab.from_target[labels[labels >= 0]]  # [n]
    known = draft < vocab.size - 1
    logits = F.linear(learner.hidden(ids, labels)[known], learner.head())
    return F.cross_entropy(logits.float(), draft[known])


@torch.no_grad()
def agreement(learner: Learner, vocab: DraftVocab, ids: Tensor, labels: Tensor) -> Tensor:
    """[B, T] bool: the draft's most likely token is the target's. False off the answer."""
    logits = F.linear(learner.hidden(ids, labels), learner.head())[..., : vocab.size - 1]
    hits = torch.zeros_like(labels, dtype=torch.bool)
    hits[labels >= 0] = vocab.to_target[logits.argmax(-1)] == labels[labels >= 0]
    return hits


class DraftLearner:
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

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        return draft_loss(self, self.vocab, ids, labels)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.module.model(self.vocab.from_target[ids], use_cache=False)[0]
        return out[labels >= 0]

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

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        return draft_loss(self, self.vocab, ids, labels)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.target.lower_batch(ids, self.module.config.exit_layer)
        out: Tensor = self.module(states)
        return out[labels >= 0]

    def head(self) -> Tensor:
        return self._head

    def save(self, folder: Path) -> None:
        self.module.save(folder)
        self.vocab.save(folder)


class LensLearner:
    """A lens on the states after an encoder-decoder's first layers; the target is frozen."""

    def __init__(self, target: HFSeq2SeqBackend, exit_layer: int, vocab: DraftVocab) -> None:
        self.target, self.vocab = target, vocab
        self.module = plain_lens(target, exit_layer)
        nn.init.ones_(self.module.norm)
        rows = target.model.lm_head.weight.detach()[vocab.to_target] * target.head_scale
        self._head = torch.cat([rows, torch.zeros_like(rows[:1])])

    def start_lens(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fit the lens on a few batches of ids and labels [B, T]."""
        pairs = [self._states(ids, labels) for ids, labels in batches]
        states, final = (torch.cat(part) for part in zip(*pairs, strict=True))
        self.module.fit_lens(states, final)

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        return draft_loss(self, self.vocab, ids, labels)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.module(self._states(ids, labels)[0])
        return out

    @torch.no_grad()
    def _states(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return seq2seq_states(self.target.model, self.module.config.exit_layer, ids, labels)

    def head(self) -> Tensor:
        return self._head

    def save(self, folder: Path) -> None:
        self.module.save(folder)
        self.vocab.save(folder)


class JointExitLearner:
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
        self._layers = seq2seq_layers if two_parts else causal_layers
        self._states = seq2seq_states if two_parts else causal_states
        self._norm = model.decoder.final_layer_norm if two_parts else model.model.norm
        self._scale = head_scale(model.config) if two_parts else 1.0

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean of the exit's and the last layer's, each over the target's whole vocabulary;
        with every_layer that of all of them, the i-th weighed by i."""
        chosen = labels[labels >= 0]
        read = self._all(ids, labels) if self._every_layer else self._both(ids, labels)
        losses = torch.stack(
            [F.cross_entropy(self.module.lm_head(states).float(), chosen) for states in read]
        )
        weights = torch.ones_like(losses)
        if self._every_layer:
            weights = torch.arange(1.0, len(losses) + 1, device=losses.device)
        return (weights * losses).sum() / weights.sum()

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self._both(ids, labels)[0]

    def _all(self, ids: Tensor, labels: Tensor) -> list[Tensor]:
        """[n, d] from every layer, ready for the head."""
        *below, last = self._layers(self.module, ids, labels)
        return [*(self._norm(states) * self._scale for states in below), last * self._scale]

    def _both(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[n, d] from the exit's layer and from the last, both ready for the head."""
        states, last = self._states(self.module, self._exit_layer, ids, labels)
        return self._norm(states) * self._scale, last * self._scale

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
        model = self.module.to(torch.bfloat16)
        model.save_pretrained(folder)
        model.to(torch.float32)
        copy_texts(self._folder, folder)


def copy_texts(source: Path, folder: Path) -> None:
    """The tokenizer and chat template of a model; what `folder` has already stays."""
    for path in (*source.glob("*.*"), *source.glob("additional_chat_templates/*")):
        name = path.relative_to(source)
        place = folder / name
        if is_text(name.as_posix()) and name.name != "card.json" and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
