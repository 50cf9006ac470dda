"""Tiny T5-like models and transformers' answers to compare with."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from decoder_toys import CPU, answer_of
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.backends.transformers.seq2seq_exit import LensHead, plain_lens
from decoders.methods.early_exit.drafter import EarlyExitDrafter
from decoders.sampling.draft_vocab import DraftVocab

SIZES: dict[str, Any] = {
    "vocab_size": 16,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": None,
}

EXIT_T5: dict[str, Any] = {  # small enough to walk every outcome; two decoder layers
    "vocab_size": 3,
    "d_model": 16,
    "d_ff": 16,
    "num_heads": 2,
    "num_layers": 1,
}


def save_tiny_t5(folder: Path, kind: str, seed: int, config: dict[str, Any]) -> None:
    """A random model that listens to its source and to its positions.

    own_head: the head's weights are not the embedding's.
    """
    config = dict(config)
    own_head = config.pop("own_head", False)
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **config}))
    if own_head:
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_(0, 3.0)
            elif "shared" in name or "lm_head" in name:
                parameter.normal_(0, 0.3)
            elif parameter.ndim == 2:
                parameter.normal_(0, 0.2)
            else:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)


@cache
def seq2seq_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval()


def seq2seq(folder: Path, dtype: torch.dtype = torch.float32) -> HFSeq2SeqBackend:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).to(CPU)
    return HFSeq2SeqBackend(model, context=96)


@cache
def cut_model(folder: Path, layers: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """transformers' own exit: the model with its first decoder layers alone."""
    return AutoModelForSeq2SeqLM.from_pretrained(
        folder, num_decoder_layers=layers, dtype=dtype
    ).eval()


def from_scratch(model: PreTrainedModel, source: list[int]) -> Callable[[list[int]], Tensor]:
    """Context, the start token included -> logits [V] of what follows; all is read anew."""

    @torch.no_grad()
    def logits(context: list[int]) -> Tensor:
        out = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([context]))
        last: Tensor = out.logits[0, -1]
        return last

    return logits


def generate_t5(model: PreTrainedModel, source: list[int], most: int, **options: Any) -> list[int]:
    """transformers' own greedy answer, the start token left out."""
    return answer_of(model, source, most, options)[1:]


def lens_exit(
    target: HFSeq2SeqBackend,
    layer: int,
    seed: int = 0,
    vocab: DraftVocab | None = None,
    noise: float = 0.05,
) -> EarlyExitDrafter:
    """The target's own norm and head on the exit's states, pushed off the identity."""
    lens = plain_lens(target, layer).to(target.dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    push = torch.randn(lens.lens.shape, generator=generator, dtype=torch.float64)
    lens.lens += noise * push.to(target.dtype)
    return EarlyExitDrafter(target, LensHead(target, lens, vocab))
