"""How likely each token of a sampled answer is to be accepted from a drafter.

One pass of the target and one of the drafter over known answers give p and q of each of their
tokens (`expected.py` goes on from there). Where many rows are read at once, rounded weights give
way to those that prompts are read with, as in `stack.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoders.backends.weights.packed import linear
from decoders.sampling.draft_vocab import DraftVocab

from .protocols import KnownAnswers
from .stack import LOGITS_AT_ONCE, Stack


class AcceptanceTrial(NamedTuple):
    """An answer's token as a drafter might have drafted it, given all before it.

    chance: that it is accepted, min(1, q / p).
    confidence: of the drafter's most likely token there, raw.
    """

    chance: float
    confidence: float


# (row, at, k) -> the k tokens that follow the first `at` >= 1 of answers[row], as a draft; fewer
# where the answer has no more
AcceptanceTrials = Callable[[int, int, int], list[AcceptanceTrial]]


@torch.inference_mode()
def scores(
    stack: Stack,
    states: Sequence[Tensor],
    answers: Sequence[Sequence[int]],
    temperature: float,
) -> list[tuple[Tensor, Tensor]]:
    """Per answer, log q of each of its n tokens [n] and the confidence there [n].

    states: of each answer [n, d], in front of each token, as the head reads them.
    """
    made = []
    for rows, answer in zip(states, answers, strict=True):
        ids = torch.tensor(answer, dtype=torch.int64, device=rows.device)
        split = (torch.split(each, LOGITS_AT_ONCE) for each in (rows, ids))
        pairs = zip(*split, strict=True)
        parts = [score(linear(h, stack.head), part, stack.vocab, temperature) for h, part in pairs]
        made.append((torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])))
    return made


def score(
    logits: Tensor, ids: Tensor, vocab: DraftVocab | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score [n, N] logits over draft tokens: log q of the target's ids [n], -inf for those that the
    draft vocabulary lacks, and the confidence [n]."""
    raw = logits if logits.dtype == torch.float64 else logits.float()
    sure = (raw.amax(-1) - raw.logsumexp(-1)).exp()
    own = ids if vocab is None else vocab.from_target[ids]
    has = own < raw.shape[-1]
    cooled = raw / temperature
    log_q = cooled.gather(1, (own * has).unsqueeze(1)).squeeze(1) - cooled.logsumexp(-1)
    return log_q.masked_fill(~has, -torch.inf), sure


def after(
    logits: Tensor, answer: list[int], vocab: DraftVocab | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score a whole answer [n] whose first token has no logits: log 1, not confident."""
    ids = torch.tensor(answer[1:], dtype=torch.int64, device=logits.device)
    log_q, sure = score(logits, ids, vocab, temperature)
    none = log_q.new_zeros(min(1, len(answer)))
    return torch.cat([none, log_q]), torch.cat([none, sure])


def tried(log_q: Tensor, log_p: Tensor, sure: Tensor) -> list[AcceptanceTrial]:
    """All [n]."""
    chances = (log_q - log_p).clamp(max=0).exp()
    return list(map(AcceptanceTrial, chances.tolist(), sure.tolist()))


def trials_along(
    scored: Sequence[tuple[Tensor, Tensor]], answers: KnownAnswers, temperature: float
) -> AcceptanceTrials:
    """scored: per answer, log q of each token [n] and the confidence there [n]."""
    made = [
        tried(log_q, log_p, sure)
        for (log_q, sure), log_p in zip(scored, answers.log_p(temperature), strict=True)
    ]
    return lambda row, at, k: made[row][at : at + k]
