"""The loss of a drafter over the target's states: how far its distribution is from the target's.

Logits over thousands of tokens for every position and step are far larger than anything else in
training. They are made a chunk of positions at a time, and each chunk is turned at once into its
loss and its gradient (q - p for the divergence): none is kept. The target's distribution at a
position serves every step that predicts there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def distribution(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[n, N] -> what `divergence` knows of the target: p [n, N], and sum p log p [n], at least in
    float32."""
    log_p = logits.log_softmax(-1, dtype=_exact(logits))
    p = log_p.exp()
    return p, log_p.mul_(p).sum(-1)


def divergence(
    p: Tensor, certainty: Tensor, logits: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """KL(p || q) [] and its gradient [n, N] by the student's logits [n, N].

    p, certainty: from `distribution`.
    weight: [n].
    """
    log_q = logits.log_softmax(-1, dtype=_exact(logits))
    loss = certainty - (p * log_q).sum(-1)  # [n]
    gradient = log_q.exp_().sub_(p)
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
        chunk: int,
    ) -> Tensor:
        loss = weights.new_zeros(())
        gradient = torch.empty_like(read)
        for first in range(0, len(final), chunk):
            part = slice(first, first + chunk)
            p, certainty = distribution(F.linear(final[part], rows))
            for step, weight in enumerate(weights):
                logits = F.linear(read[step, part], rows)  # [n, N]
                value, by_logits = divergence(p, certainty, logits, weight[part])
                loss += value
                torch.mm(by_logits, rows, out=gradient[step, part])
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outside[0].to(gradient.dtype), None, None, None, None


def distilled(
    read: Tensor,
    final: Tensor,
    rows: Tensor,
    weights: Tensor,
    chunk: int = 1024,
) -> Tensor:
    """Weighted sum of losses, []; its gradient goes to `read` alone.

    read: [k, M, d], ready for the head, of each step at the position that it predicts at.
    final: [M, d] the target's there.
    rows: [N, d] the head's over the draft vocabulary, the only tokens that count.
    weights: [k, M] in float32, 0 where a position does not count.
    """
    loss: Tensor = _Distilled.apply(read, final, rows, weights, chunk)  # type: ignore[no-untyped-call]
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
