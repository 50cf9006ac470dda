"""What is trained: a small model, or an exit adapter on a frozen target.

A learner turns a batch into a loss and into agreement (how often its most likely token is the
target's), and saves itself as the folder that `decoders` loads.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig, Lens
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers import pretrained
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend, head_scale, start_token
from decoders.backends.transformers.seq2seq_exit import plain_lens
from decoders.backends.weights.packed import dense
from decoders.models.hub import is_text
from decoders.sampling.draft_vocab import DraftVocab

from .calibration import Batch, Example, batches
from .recipe import Recipe
from .training import Task
from .weights import Weights, autocast, optimizers

SMALL_T5: dict[str, Any] = {
    "d_model": 128,
    "d_kv": 64,
    "d_ff": 512,
    "num_heads": 2,
    "num_layers": 1,
    "num_decoder_layers": 1,
}


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
        """Mean cross-entropy over answer tokens that the draft vocabulary holds, 0 without any: []
        for ids and labels [B, T], as in `Batch`."""
        draft = self.vocab.from_target[labels[labels >= 0]]  # [n]
        known = draft < self.vocab.size - 1
        logits = F.linear(self.hidden(ids, labels)[known], self.head())
        total = F.cross_entropy(logits.float(), draft[known], reduction="sum")
        return total / known.sum().clamp(min=1)


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


class Seq2SeqDraftLearner(Learner):
    """A small encoder-decoder over the target's whole vocabulary, aligned by what the target writes
    (Kim et al., Speculative Decoding with Big Little Decoder, section 3.5.1).

    target: a folder; its tokenizer and what its configuration says besides the sizes are the
        drafter's too.
    sizes: fields of that configuration to change.
    start: a drafter to go on from, in their place.
    """

    def __init__(self, target: Path, sizes: dict[str, Any], start: Path | None = None) -> None:
        from transformers import AutoConfig, AutoModelForSeq2SeqLM

        if start is not None:
            self.module = pretrained.load(AutoModelForSeq2SeqLM, start, torch.float32)
        else:
            with pretrained.explained(target) as without:
                config = AutoConfig.from_pretrained(target, **without)
            config.update({**sizes, "dropout_rate": 0.0})
            self.module = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
        self._target, self._scale = target, head_scale(self.module.config)
        vocabulary = self.module.config.vocab_size
        self.vocab = DraftVocab([*range(vocabulary)], vocabulary)

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        states, valid = seq2seq_states(self.module, ids, labels)
        return states[-1][valid] * self._scale

    def save(self, folder: Path) -> None:
        save_model(self.module, folder)
        copy_texts(self._target, folder)


def seq2seq_states(model: Any, ids: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """States [B, A, d] of a T5-like model's decoder before its first layer and after each, the last
    ones normed, and which of the positions [B, A] are of an answer. A row is a prompt and its
    answer in one (see `Batch`), which are taken apart."""
    source, of_source, written, valid = apart(ids, labels)
    start = torch.full_like(written[:, :1], start_token(model))
    encoded = model.encoder(input_ids=source, attention_mask=of_source).last_hidden_state
    decoded = model.decoder(
        input_ids=torch.cat([start, written[:, :-1]], 1),
        encoder_hidden_states=encoded,
        encoder_attention_mask=of_source,
        use_cache=False,
        output_hidden_states=True,
    )
    return decoded.hidden_states, valid


def apart(ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows [B, T] of prompt and answer -> the prompts [B, S] and which of their ids count, the
    answers [B, A] and which of theirs do."""
    answers = labels >= 0
    last = answers.int().argmax(1, keepdim=True)  # [B, 1] the prompt's last position has a label
    width = int(last.max()) + 1
    of_source = torch.arange(width, device=ids.device) <= last  # [B, S]
    counts = answers.sum(1, keepdim=True)  # [B, 1]
    valid = torch.arange(int(counts.max()), device=ids.device) < counts  # [B, A]
    written = torch.zeros_like(valid, dtype=ids.dtype)
    written[valid] = labels[answers]
    return ids[:, :width], of_source, written, valid


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


class Answers(Task):
    """A learner and its examples, for `training.train`."""

    def __init__(self, learner: Learner, examples: Sequence[Example], recipe: Recipe) -> None:
        self._learner, self._recipe = learner, recipe
        self._examples = [e for e in examples if not e.held_out]
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in learner.module.named_parameters():
            outer = any(part in name for part in ("embed", "shared", "head", "bias"))
            (matrices if parameter.ndim == 2 and not outer else rest).append(parameter)
        rules = optimizers(matrices, rest, recipe, recipe.weight_decay)
        self.weights = Weights(learner.module, rules)

    def steps(self, epochs: int) -> int:
        return sum(len(self._epoch(epoch)) for epoch in range(epochs))

    def batches(self, skipped: int) -> Generator[Batch, None, None]:
        for epoch in count():
            made = self._epoch(epoch)
            yield from made[skipped:]
            skipped = max(0, skipped - len(made))

    def _epoch(self, epoch: int) -> list[Batch]:
        recipe = self._recipe
        return batches(self._examples, recipe.batch_tokens, recipe.seed + epoch)

    def positions(self, batch: Batch) -> int:
        return int(batch.ids.size)

    def loss(self, batch: Batch) -> Tensor:
        device = self.weights.device
        with autocast(device):
            return self._learner.loss(*tensors(batch, device))


def tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Its ids and labels, [B, T] each."""
    return torch.from_numpy(batch.ids).to(device), torch.from_numpy(batch.labels).to(device)


def evaluate(
    learner: Learner, examples: Sequence[Example], device: torch.device
) -> dict[str, float]:
    """Share of answer tokens whose draft argmax is the target's token, per task and `overall`.

    An answer's first token is left out: the target's own prefill gives it.
    """
    right, total = Counter[str](), Counter[str]()
    for batch in batches(examples, 8192, 0):
        ids, labels = tensors(batch, device)
        with autocast(device):
            hits = agreement(learner, ids, labels).cpu().numpy()
        for task, hit, label in zip(batch.tasks, hits, batch.labels, strict=True):
            answer = np.flatnonzero(label >= 0)[1:]
            right[task] += int(hit[answer].sum())
            total[task] += len(answer)
    shares = {task: right[task] / max(1, total[task]) for task in sorted(right)}
    shares["overall"] = right.total() / max(1, total.total())
    return shares
