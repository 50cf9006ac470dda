"""A small encoder-decoder that drafts for one: T5-like, over the target's whole vocabulary.

Kim et al. (Speculative Decoding with Big Little Decoder, section 3.5.1) align such a model with its
target by training it on what the target writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from decoders.backends.transformers import pretrained
from decoders.backends.transformers.hf_seq2seq import head_scale
from decoders.sampling.draft_vocab import DraftVocab

from .learners import copy_texts
from .states import seq2seq_states

SMALL_T5: dict[str, Any] = {
    "d_model": 128,
    "d_kv": 64,
    "d_ff": 512,
    "num_heads": 2,
    "num_layers": 1,
    "num_decoder_layers": 1,
}


class Seq2SeqDraftLearner:
    """A transformers model of the target's family.

    target: a folder; its tokenizer and what its configuration says besides the sizes are the
        drafter's too.
    sizes: fields of that configuration to change.
    start: a drafter to go on from, in their place.
    """

    def __init__(self, target: Path, sizes: dict[str, Any], start: Path | None = None) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForSeq2SeqLM

        if start is not None:
            self.module: Any = pretrained.load(AutoModelForSeq2SeqLM, start, torch.float32)
        else:
            with pretrained.explained(target) as without:
                config = AutoConfig.from_pretrained(target, **without)
            config.update({**sizes, "dropout_rate": 0.0})
            self.module = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
        self._target, self._scale = target, head_scale(self.module.config)
        vocabulary = self.module.config.vocab_size
        self.vocab = DraftVocab([*range(vocabulary)], vocabulary)

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(self.hidden(ids, labels), self.head())
        return F.cross_entropy(logits.float(), labels[labels >= 0])

    def hidden(self, ids: Tensor, labels: Tensor) -> Tensor:
        """As in Learner."""
        last = self.module.config.num_decoder_layers
        states: Tensor = seq2seq_states(self.module, last, ids, labels)[1] * self._scale
        return states

    def head(self) -> Tensor:
        weight: Tensor = self.module.lm_head.weight
        return weight

    def save(self, folder: Path) -> None:
        import torch

        model = self.module.to(torch.bfloat16)
        model.save_pretrained(folder)
        model.to(torch.float32)
        copy_texts(self._target, folder)
