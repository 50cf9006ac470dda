"""A small encoder-decoder that drafts for one: T5-like, over the target's whole vocabulary.

Kim et al. (Speculative Decoding with Big Little Decoder, section 3.5.1) align such a model with its
target by training it on what the target writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.backends.transformers import pretrained
from decoders.backends.transformers.hf_seq2seq import head_scale
from decoders.sampling.draft_vocab import DraftVocab

from .learners import Learner, copy_texts, save_model
from .states import seq2seq_states

SMALL_T5: dict[str, Any] = {
    "d_model": 128,
    "d_kv": 64,
    "d_ff": 512,
    "num_heads": 2,
    "num_layers": 1,
    "num_decoder_layers": 1,
}


class Seq2SeqDraftLearner(Learner):
    """A transformers model of the target's family.

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
