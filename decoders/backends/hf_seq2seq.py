"""T5-like transformers models behind the Backend seam (D22).

The prompt goes through the encoder once. What the loop extends and rolls back is the decoder's
sequence, which begins with its start token; the keys and values that the decoder computes from the
encoder's states at its first pass are kept for the whole answer.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedModel,
)

from ..errors import ContextTooLong, DraftpickError
from ..records import Prefilled
from .hf import PreallocatedLayer
from .sync import synchronize

MODEL_TYPES = ("t5", "mt5", "umt5")
CONTEXT = 1024  # positions are relative, so that only memory bounds them


class HFSeq2SeqBackend:
    """One source and its answer. context: the most tokens of either, the start token included."""

    def __init__(self, model: PreTrainedModel, context: int = CONTEXT) -> None:
        self.model = model.eval()
        config = model.config
        if config.model_type not in MODEL_TYPES:
            raise DraftpickError(
                f"{config.model_type} is no T5-like encoder-decoder; name a model of type "
                f"{', '.join(MODEL_TYPES)}"
            )
        start = config.decoder_start_token_id
        if start is None:
            start = model.generation_config.decoder_start_token_id
        if start is None:
            raise DraftpickError(
                f"this {config.model_type} model names no decoder_start_token_id; put it into its "
                "config.json (T5's is 0)"
            )
        self.start_id = int(start)
        self.vocab_size: int = config.vocab_size
        self.parameters = sum(p.numel() for p in model.parameters())
        self.context = context
        self.device, self.dtype = model.device, model.dtype
        self._layers = [PreallocatedLayer(context) for _ in range(config.num_decoder_layers)]

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> HFSeq2SeqBackend:
        return cls(AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).to(device))

    @property
    def length(self) -> int:
        """Positions of the decoder that are held; 1 after `prefill`."""
        return self._layers[0].held

    @torch.inference_mode()
    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        """Encode `prompt_ids` [S] and read the start token. The embedding is the mean of the
        encoder's states over the prompt."""
        started = time.perf_counter()
        if not prompt_ids:
            raise DraftpickError("the prompt is empty; give it at least one token")
        if len(prompt_ids) > self.context:
            raise ContextTooLong(len(prompt_ids), 0, self.context)
        self.truncate(0)
        encoder = self.model.get_encoder()
        source = torch.tensor([prompt_ids], device=self.device)
        self._states = encoder(source).last_hidden_state  # [1, S, d]
        self._cache = EncoderDecoderCache(Cache(layers=self._layers), DynamicCache())
        logits = self.extend(torch.tensor([self.start_id], device=self.device))  # [1, V]
        embedding = self._states[0].float().mean(0)
        synchronize(self.device)
        return Prefilled(logits[0], embedding, time.perf_counter() - started)

    @torch.inference_mode()
    def extend(self, ids: Tensor) -> Tensor:
        if self.length + len(ids) > self.context:
            raise ContextTooLong(self.length, len(ids), self.context)
        out = self.model(
            encoder_outputs=(self._states,),
            decoder_input_ids=ids.unsqueeze(0),
            past_key_values=self._cache,
        )
        logits: Tensor = out.logits[0]
        return logits

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        for layer in self._layers:
            layer.held = length
