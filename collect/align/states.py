"""States that an exit is trained on: after every layer, and where answers are among them.

A batch's rows are a prompt and its answer in one (see `Batch`): a decoder-only model reads them as
they are; for an encoder-decoder they are taken apart again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.backends.transformers.hf_seq2seq import start_token


def causal_states(model: Any, ids: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """States [B, T, d] before the first layer and after each, the last ones normed (transformers
    gives them so), and which of the positions [B, T] have a label (not -100)."""
    read = model.model(ids, use_cache=False, output_hidden_states=True)
    return read.hidden_states, labels >= 0


def seq2seq_states(model: Any, ids: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """As `causal_states`, [B, A, d] of a T5-like model's decoder."""
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
