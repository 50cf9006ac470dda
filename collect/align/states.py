"""States that an exit is trained on: after its layer and after the last, where answers are.

A batch's rows are a prompt and its answer in one (see `Batch`): a decoder-only model reads them as
they are; for an encoder-decoder they are taken apart again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.backends.transformers.hf_seq2seq import start_token


def causal_states(
    model: Any, exit_layer: int, ids: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """For the n labels (not -100), row by row: [n, d] after `exit_layer` layers, and [n, d] after
    the last layer and the final norm."""
    states = _causal(model, ids)
    return states[exit_layer][labels >= 0], states[-1][labels >= 0]


def causal_layers(model: Any, ids: Tensor, labels: Tensor) -> list[Tensor]:
    """The same after every layer from the first on, [n, d] each; the last one normed."""
    return [states[labels >= 0] for states in _causal(model, ids)[1:]]


def seq2seq_states(
    model: Any, exit_layer: int, ids: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """As `causal_states`, of a T5-like model's decoder."""
    states, valid = _seq2seq(model, ids, labels)
    return states[exit_layer][valid], states[-1][valid]


def seq2seq_layers(model: Any, ids: Tensor, labels: Tensor) -> list[Tensor]:
    """As `causal_layers`, of a T5-like model's decoder."""
    states, valid = _seq2seq(model, ids, labels)
    return [each[valid] for each in states[1:]]


def _causal(model: Any, ids: Tensor) -> tuple[Tensor, ...]:
    """[B, T, d] before the first layer and after each; transformers gives the last one normed."""
    read = model.model(ids, use_cache=False, output_hidden_states=True)
    states: tuple[Tensor, ...] = read.hidden_states
    return states


def _seq2seq(model: Any, ids: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """[B, A, d] of the decoder, as `_causal`, and which of the positions [B, A] count."""
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
