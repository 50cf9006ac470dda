"""The loss of a drafter over the target's states: how far its distribution is from the target's.

Logits over thousands of tokens for every position and step are far larger than anything else in
training. They are made a chunk of positions at a time, and each chunk is turned at once into its
loss and its gradient (q - p for the divergence): none is kept. The target's distribution at a
position serves every step that predicts there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pieces = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def distribution(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[n, N] -> what `pieces` knows of the target: p [n, N], and sum p log p [n], at least in
    float32."""
    log_p = logits.log_softmax(-1, dtype=_exact(logits))
    p = log_p.exp()
    return p, log_p.mul_(p).sum(-1)


def pieces(
    p: Tensor, certainty: Tensor, logits: Tensor, weight: Tensor, tv: float
) -> tuple[Tensor, Tensor]:
    """Loss [] and its gradient [n, N] by the student's logits [n, N].

    p, certainty: from `distribution`.
    weight: [n].
    tv: the share of total variation, 1 - sum min(p, q), besides KL(p || q).
    """
    log_q = logits.log_softmax(-1, dtype=_exact(logits))
    loss = certainty - (p * log_q).sum(-1)  # [n]
    q = log_q.exp_()
    if tv:
        loss = (1 - tv) * loss + tv * (1 - torch.minimum(p, q).sum(-1))
        short = torch.where(q < p, q, 0.0)  # what a token still lacks is what it can gain
        varied = q * short.sum(-1, keepdim=True) - short
        gradient = (1 - tv) * (q - p) + tv * varied
    else:
        gradient = q.sub_(p)
    return (loss * weight).sum(), gradient.mul_(weight.unsqueeze(-1)).to(logits.dtype)


def _exact(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


class _Distilled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        read: Tensor,
        final: Tensor,
        rows: Tensor,
        weights: Tensor,
        tv: float,
        chunk: int,
        make: Pieces,
    ) -> Tensor:
        loss = weights.new_zeros(())
        gradient = torch.empty_like(read)
        for first in range(0, len(final), chunk):
            part = slice(first, first + chunk)
            p, certainty = distribution(F.linear(final[part], rows))
            for step, weight in enumerate(weights):
                logits = F.linear(read[step, part], rows)  # [n, N]
                value, by_logits = make(p, certainty, logits, weight[part], tv)
                loss += value
                torch.mm(by_logits, rows, out=gradient[step, part])
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outside[0].to(gradient.dtype), None, None, None, None, None, None


def distilled(
    read: Tensor,
    final: Tensor,
    rows: Tensor,
    weights: Tensor,
    tv: float = 0.0,
    chunk: int = 1024,
    make: Pieces = pieces,
) -> Tensor:
    """Weighted sum of losses, []; its gradient goes to `read` alone.

    read: [k, M, d], ready for the head, of each step at the position that it predicts at.
    final: [M, d] the target's there.
    rows: [N, d] the head's over the draft vocabulary, the only tokens that count.
    weights: [k, M] in float32, 0 where a position does not count.
    """
    loss: Tensor = _Distilled.apply(read, final, rows, weights, tv, chunk, make)  # type: ignore[no-untyped-call]
    return loss


def step_weights(at: Tensor, steps: int, fade: float) -> Tensor:
    """[k, M] in float32: what each position weighs at each step; 1 in all.

    at: [M] places in the texts, -1 for padding. Step i predicts at a place only from i before it,
    in the same text. Step i counts fade^(i - 1), as a mean over its positions.
    """
    counted = torch.stack([at >= step for step in range(1, steps + 1)]).float()  # [k, M]
    mean = counted / counted.sum(1, keepdim=True).clamp(min=1)
    share = fade ** torch.arange(steps, device=at.device)
    return mean * (share / share.sum()).unsqueeze(1)
