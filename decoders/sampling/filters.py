"""From logits to the distribution that is sampled; filters mean what they do in transformers."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.errors import NotANumber
from ..records import NAN, Sampling, TokenLogprob
from .argmax import likeliest, numbered
from .kernels import ON_CPU
from .randomness import RandomSource

LANES = 16  # numbers that a kernel takes at once


def seen_mask(
    context: list[int],
    draft: Tensor,
    rows: int,
    vocab: int,
    parents: tuple[int, ...] | None = None,
) -> Tensor:
    """[rows, V] bool: tokens that precede row i, where row i follows `context` and draft[:i], or
    in a tree (see Proposal.parents) `context` and the branch that ends with draft[i - 1]."""
    mask = torch.zeros(rows, vocab, dtype=torch.bool, device=draft.device)
    mask[:, torch.tensor(context, device=draft.device)] = True
    for row in range(1, rows):
        if parents is None:
            mask[row:, draft[row - 1]] = True
        else:
            mask[row] = mask[parents[row - 1] + 1]
            mask[row, draft[row - 1]] = True
    return mask


def penalise(logits: Tensor, sampling: Sampling, seen: Tensor) -> Tensor:
    """Repetition penalty on [T, V]; the logits themselves where none is asked for."""
    p = sampling.repetition_penalty
    if p == 1:
        return logits
    return torch.where(seen, torch.where(logits < 0, logits * p, logits / p), logits)


def raw_probabilities(logits: Tensor) -> Tensor:
    """[T, V] logits -> [T, V], the model's own confidence: temperature 1, no filters.

    The repetition penalty is no filter: where one is asked for, it belongs to the model, and these
    logits have it already. Precision as in `probabilities`.
    """
    return (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)


def log_probabilities(logits: Tensor) -> Tensor:
    """[T, V] logits -> [T, V], the logarithm of `raw_probabilities`."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """[T, V] logits -> [T, V] probabilities after temperature, top-k and top-p, in that order.

    float32, or float64 where the logits are. Temperature must be above 0.
    """
    if ON_CPU.soften is not None and sampling.unfiltered and _fits(logits):
        return ON_CPU.soften(logits, sampling.temperature)
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature != 1:
        scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p < 1:
        scores = nucleus(scores, *scores.sort(-1), 1 - sampling.top_p)
    return scores.softmax(-1)


def nucleus(scores: Tensor, ascending: Tensor, order: Tensor, outside: float | Tensor) -> Tensor:
    """scores [T, V] with -inf for the least likely tokens, whose mass is `outside` at most.

    ascending, order: [T, V] of a sort of them.
    """
    drop = ascending.softmax(-1).cumsum(-1) <= outside
    drop[..., -1] = False  # the most likely token always stays
    return scores.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def _fits(logits: Tensor) -> bool:
    on_cpu = logits.device.type == "cpu" and logits.dtype == torch.bfloat16
    return on_cpu and logits.ndim == 2 and logits.shape[1] % LANES == 0


def penalised(logits: Tensor, context: list[int], sampling: Sampling) -> Tensor:
    """[V] logits for what follows `context`, the repetition penalty applied."""
    if sampling.repetition_penalty == 1:
        return logits
    nothing = torch.empty(0, dtype=torch.int64, device=logits.device)
    return penalise(logits, sampling, seen_mask(context, nothing, 1, len(logits))[0])


def choose(logits: Tensor, sampling: Sampling, chance: RandomSource) -> int:
    """The next token, read to the host: the most likely of [V] logits, or one drawn. Raises
    NotANumber where the logits are none."""
    if sampling.greedy:
        token = int(numbered(likeliest(logits), logits))
    else:
        probs = probabilities(logits.unsqueeze(0), sampling)[0]
        token = int(numbered(chance.draw(probs), probs))
    if token == NAN:
        raise NotANumber
    return token


def confidence(logits: Tensor) -> float:
    """The most likely token's probability at temperature 1, unfiltered; logits [V]."""
    scores = logits.float()
    return float((scores.max() - scores.logsumexp(-1)).exp())


def logprobs(logits: Tensor, ids: list[int], most: int) -> list[TokenLogprob]:
    """How likely each of `ids` [n] was by its row of logits [n, V], with the `most` most likely
    tokens of that row."""
    scores = log_probabilities(logits)  # [n, V]
    index = torch.tensor(ids, device=scores.device).unsqueeze(1)  # [n, 1]
    own = scores.gather(1, index).squeeze(1).tolist()
    best = scores.topk(min(most, scores.shape[-1]), -1)
    rows = zip(own, best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenLogprob(one, list(zip(at, of, strict=True))) for one, at, of in rows]
