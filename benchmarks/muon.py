"""Muon with one product for all matrices of a shape.

Same updates as `torch.optim.Muon`, which takes the matrices one by one: some thirty small kernels
each, more than a small model's own passes. The learning rates are tensors, so that a recorded step
reads the present one.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

# quintic Newton-Schulz, the coefficients of Jordan et al. (2024) that torch.optim.Muon takes too
A, B, C = 3.4445, -4.775, 2.0315
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """matrices: [rows, columns] each, on one device. lr: a tensor of no dimensions, there too.

    momentum: of Nesterov's kind. weight_decay: decoupled, times the learning rate.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": alike} for alike in by_shape.values()], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Every matrix must have a gradient. closure: not used."""
        for group in self.param_groups:
            matrices, lr, momentum = group["params"], group["lr"], group["momentum"]
            gradients = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            if not state:
                state["average"] = torch.zeros_like(gradients)
            average = state["average"].lerp_(gradients, 1 - momentum)
            turned = orthogonal(gradients.lerp(average, momentum)).float()
            rows, columns = turned.shape[1:]
            updates = turned * (lr * sqrt(max(1, rows / columns)))
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
            torch._foreach_sub_(matrices, list(updates.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """[n, rows, columns] in bfloat16: nearly the nearest with orthonormal rows or columns."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
