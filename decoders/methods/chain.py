"""Drafting one token after another, whatever the model that scores them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..protocols import Backend, Drafter, DraftRequest, decoder_prefix
from ..records import Proposal
from ..requests.reading import PREFILL_CHUNK
from ..sampling.draft_vocab import DraftVocab
from ..sampling.filters import (
    chosen,
    confidence,
    penalise,
    probabilities,
    raw_probabilities,
    seen_mask,
)


def draft_chain(
    first: Tensor,
    step: Callable[[Tensor], Tensor],
    context: list[int],
    vocab: DraftVocab | None,
    asked: DraftRequest,
) -> tuple[Proposal, int]:
    """Up to `asked.k` tokens, and how often `step` was called.

    first: [N] logits for the first drafted token.
    step: [1] target id -> [N] logits for the next.

    N counts draft tokens ("other" left out). Under a grammar each is drawn from those that it takes
    there, and the draft ends where it takes none. At temperature 0 nothing is normalised unless
    `needs_raw`, and nothing is read from the device, unless `min_confidence` asks for the most
    likely token's probability, or a grammar for each token.
    """
    sampling, min_confidence = asked.sampling, asked.min_confidence
    logits, steps = first, 0
    ids: list[Tensor] = []
    rows: list[Tensor] = []
    raw: list[Tensor] = []
    penalised = sampling.repetition_penalty != 1
    state = None if asked.grammar is None else asked.grammar.after(context)
    while True:
        if penalised:
            drafted = torch.stack(ids) if ids else logits.new_empty(0, dtype=torch.int64)
            width = logits.shape[-1] if vocab is None else vocab.target_vocab
            seen = seen_mask(context, drafted, len(ids) + 1, width)[-1]
            logits = penalise(logits, sampling, seen if vocab is None else seen[vocab.to_target])
        if state is not None:
            allowed = state.allowed().to(logits.device)
            allowed = allowed if vocab is None else allowed[vocab.to_target]
            if not allowed.any():
                break
            logits = logits.masked_fill(~allowed, -torch.inf)
        if min_confidence > 0 and not confidence(logits) >= min_confidence:
            break  # also where it is no number
        if asked.needs_raw:
            raw.append(raw_probabilities(logits))
        if asked.needs_probs:
            rows.append(probabilities(logits.unsqueeze(0), sampling)[0])
            token = asked.chance.draw(rows[-1])
        else:
            place, names = len(context) + len(ids), None if vocab is None else vocab.to_target
            token = chosen(logits.unsqueeze(0), sampling, asked.chance, place, names)[0, 0]
        ids.append(token if vocab is None else vocab.to_target[token])
        if len(ids) == asked.k or (state is not None and not state.take(int(ids[-1]))):
            break
        logits = step(ids[-1].view(1))
        steps += 1
    made = torch.stack(ids) if ids else first.new_empty(0, dtype=torch.int64)
    return Proposal(made, _stacked(rows, vocab), _stacked(raw, vocab)), steps


def _stacked(rows: list[Tensor], vocab: DraftVocab | None) -> Tensor | None:
    """K rows over draft tokens -> [K, V] over the target's; None for no rows."""
    if not rows:
        return None
    return torch.stack(rows) if vocab is None else vocab.expand(torch.stack(rows))


LATER = 8  # tokens that a model which seldom drafts reads with its next draft


def begin(drafter: Drafter, target: Backend, prompt_ids: list[int]) -> None:
    """Make ready to propose the answer's first token.

    In the loop the prompt's own pass gives that token. Here the prompt's last token is left unread,
    like the newest token before any round.
    """
    drafter.reset(prompt_ids)
    start = decoder_prefix(target, prompt_ids)
    target.truncate(len(start) - 1)
    drafter.commit(start)


def roll_back(
    backend: Backend, context: list[int], read: Callable[[Tensor], Tensor], later: int = 2
) -> int:
    """Keep what was accepted of a cache and read what a model that sat out missed; passes made.

    read: appends ids [T] to the cache, which may have kept fewer than it was asked to.
    later: unread tokens that are left to the next draft; two are the most that a round leaves.
    """
    # the cache may keep what was accepted of the draft, all but the newest token
    kept = min(backend.length, len(context) - 1)
    backend.truncate(kept)
    kept = backend.length
    if len(context) - kept <= later:
        return 0
    parts = torch.split(torch.tensor(context[kept:-1], device=backend.device), PREFILL_CHUNK)
    for part in parts:  # each position has logits over the whole vocabulary
        read(part)
    return len(parts)
