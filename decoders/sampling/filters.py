"""From logits to the distribution that is sampled; filters mean what they do in transformers."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.errors import NotANumber
from ..records import NAN, Sampling, TokenLogprob
from .argmax import likeliest, numbered
from .randomness import RandomSource


def seen_mask(
    context: list[int], draft: Tensor, rows: int, vocab: int, parents: tuple[int, ...] | None = None
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
    return cooled(logits, sampling).softmax(-1)


def cooled(logits: Tensor, sampling: Sampling) -> Tensor:
    """[T, V] logits over the temperature, -inf where a filter leaves a token out; precision as in
    `probabilities`."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature != 1:
        # a tensor, as in rounds: by a number of the host a GPU multiplies with its reciprocal
        scores = scores / scores.new_full((), sampling.temperature)
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p < 1:
        scores = nucleus(scores, *scores.sort(-1), 1 - sampling.top_p)
    return scores


def nucleus(scores: Tensor, ascending: Tensor, order: Tensor, outside: float | Tensor) -> Tensor:
    """scores [T, V] with -inf for the least likely tokens, whose mass is `outside` at most.

    ascending, order: [T, V] of a sort of them.
    """
    drop = ascending.softmax(-1).cumsum(-1) <= outside
    drop[..., -1] = False  # the most likely token always stays
    return scores.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def penalised(logits: Tensor, context: list[int], sampling: Sampling) -> Tensor:
    """[V] logits for what follows `context`, the repetition penalty applied."""
    if sampling.repetition_penalty == 1:
        return logits
    nothing = torch.empty(0, dtype=torch.int64, device=logits.device)
    return penalise(logits, sampling, seen_mask(context, nothing, 1, len(logits))[0])


def chosen(
    logits: Tensor,
    sampling: Sampling,
    chance: RandomSource,
    places: int | Tensor,
    names: Tensor | None = None,
    count: int = 1,
    after: Tensor | None = None,
) -> Tensor:
    """[T, N] logits -> [T, count] int64, indices into the row: its most likely tokens, or above
    temperature 0 those that its place's clocks name. Nothing is read from the device.

    places, names: as of `race.pick`.
    after: as of `RandomSource.pick`.
    """
    if sampling.greedy:
        if count == 1:
            return likeliest(logits).unsqueeze(1)
        return logits.topk(count, -1).indices
    if sampling.unfiltered:
        return chance.pick(logits, sampling.temperature, places, names, count, after)
    return chance.pick(cooled(logits, sampling), 1.0, places, names, count, after)


def own_tokens(
    logits: Tensor,
    sampling: Sampling,
    chance: RandomSource,
    places: int | Tensor,
    after: Tensor | None = None,
) -> Tensor:
    """[T, V] logits -> [T] the tokens that the model itself writes there, NAN where its scores are
    no numbers. The arguments are those of `chosen`."""
    return numbered(chosen(logits, sampling, chance, places, after=after)[:, 0], logits)


def choose(logits: Tensor, sampling: Sampling, chance: RandomSource, place: int) -> int:
    """The next token by [V] logits, read to the host. place: tokens before it. Raises NotANumber
    where the logits are none."""
    token = int(own_tokens(logits.unsqueeze(0), sampling, chance, place))
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
