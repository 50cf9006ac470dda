"""Exact distributions of toy targets: what is sampled, and how closely it must fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from decoder_toys import native
from torch import Tensor

from decoders.backends.native import LlamaBackend
from decoders.lengths import FixedLength
from decoders.protocols import DraftLength
from decoders.records import Sampling
from decoders.testing.chance import Distribution, distance
from decoders.testing.toys import ListedLengths, ToyBackend

# four new tokens: the first is the prompt's own, then there is room to draft two
MOST = 4


EXACT = 1e-6


SAMPLINGS = {
    "plain": Sampling(1.0),
    "cold": Sampling(0.6),
    "top_k": Sampling(1.2, top_k=2),
    "top_p": Sampling(1.0, top_p=0.7),
    "penalty": Sampling(1.0, repetition_penalty=1.7),
    "all": Sampling(1.3, top_k=3, top_p=0.9, repetition_penalty=0.8),
}


LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "fixed": lambda: FixedLength(2),
    "confident": lambda: FixedLength(2, min_confidence=0.45),
    "sits-out": lambda: ListedLengths([0, 2, 1]),
}


PROMPT = [0, 1, 0]


def toy_logits(target: ToyBackend) -> Callable[[list[int]], Tensor]:
    def logits(context: list[int]) -> Tensor:
        return target.table[context[-2] if len(context) > 1 else context[-1], context[-1]]

    return logits


def check(distribution: Distribution, truth: Distribution) -> None:
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(distribution, truth) < EXACT


def small_llama(tiny: Callable[..., Path], vocab: int = 3) -> LlamaBackend:
    folder = tiny("llama", seed=1, vocab_size=vocab, num_hidden_layers=2, initializer_range=0.15)
    return native(folder, torch.float64)
