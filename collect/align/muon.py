"""Muon in float32, for processors that do not multiply bfloat16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """torch.optim.Muon, whose products are in bfloat16 whatever the weights are; with the same
    state, so that either goes on from the other's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        momentum, rate = group["momentum"], group["lr"]
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = gradient.lerp(mean, momentum) if group["nesterov"] else mean
        update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = weight.shape
        weight.mul_(1 - rate * group["weight_decay"])
        weight.add_(update, alpha=-rate * math.sqrt(max(1, rows / columns)))


def orthogonal(matrix: Tensor, by: Sequence[float], steps: int, eps: float) -> Tensor:
    """The nearest matrix with orthogonal rows or columns, nearly: the quintic Newton-Schulz steps
    of Jordan et al. (2024). by: their three coefficients."""
    a, b, c = by
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
