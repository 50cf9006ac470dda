"""Drafting one token after another, whatever the model that scores them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..chance import Chance
from ..draft_vocab import DraftVocab
from ..records import Proposal, Sampling
from ..sampling import penalise, probabilities, seen_mask


def draft_chain(
    first: Tensor,
    step: Callable[[Tensor], Tensor],
    k: int,
    context: list[int],
    vocab: DraftVocab | None,
    sampling: Sampling,
    chance: Chance,
    min_confidence: float,
) -> tuple[Proposal, int]:
    """Up to k tokens, and how often `step` was called.

    first: [N] logits for the first drafted token. step: [1] target id -> [N] logits for the next.
    N counts draft tokens ("other" left out). At temperature 0 nothing is normalised and nothing is
    read from the device, unless `min_confidence` asks for the likeliest token's probability.
    """
    logits, steps = first, 0
    ids: list[Tensor] = []
    rows: list[Tensor] = []
    penalised = sampling.repetition_penalty != 1
    while True:
        if penalised:
            drafted = torch.stack(ids) if ids else logits.new_empty(0, dtype=torch.int64)
            seen = seen_mask(context, drafted, len(ids) + 1, _width(logits, vocab))[-1]
            logits = penalise(logits, sampling, seen if vocab is None else seen[vocab.to_target])
        if min_confidence > 0 and confidence(logits) < min_confidence:
            break
        if sampling.greedy:
            token = logits.argmax(-1)
        else:
            probs = probabilities(logits.unsqueeze(0), sampling)[0]
            rows.append(probs if vocab is None else vocab.expand(probs))
            token = chance.draw(probs)
        ids.append(token if vocab is None else vocab.to_target[token])
        if len(ids) == k:
            break
        logits = step(ids[-1].view(1))
        steps += 1
    made = torch.stack(ids) if ids else first.new_empty(0, dtype=torch.int64)
    return Proposal(made, torch.stack(rows) if rows else None), steps


def _width(logits: Tensor, vocab: DraftVocab | None) -> int:
    return logits.shape[-1] if vocab is None else vocab.target_vocab


def confidence(logits: Tensor) -> float:
    """The likeliest token's probability, raw (temperature 1), given [N] logits."""
    scores = logits.float()
    return float((scores.max() - scores.logsumexp(-1)).exp())
