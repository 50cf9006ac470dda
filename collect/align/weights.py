"""Weights that are trained, and their optimizers: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoders.backends.weights.packed import can_pack

from .recipe import Recipe, RecurrentRecipe


def training_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it; a CPU without it is several times faster in
    float32."""
    half = device.type != "cpu" or can_pack(device, torch.bfloat16)
    return torch.bfloat16 if half else torch.float32


def autocast(device: torch.device) -> torch.autocast:
    """Products in `training_dtype`."""
    dtype = training_dtype(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def optimizers(
    matrices: Sequence[nn.Parameter],
    rest: Sequence[nn.Parameter],
    recipe: Recipe,
    decay: float,
    fused: bool | None = None,
) -> list[torch.optim.Optimizer]:
    """decay: the weight decay of `rest`. fused: one call each on a GPU."""
    betas = (0.9, 0.95)
    made: list[torch.optim.Optimizer] = []
    if matrices:
        half = training_dtype(matrices[0].device) == torch.bfloat16
        kind = torch.optim.Muon if half else Float32Muon
        made.append(kind(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay))
    made.append(torch.optim.AdamW(rest, recipe.lr, betas, weight_decay=decay, fused=fused))
    return made


class Weights:
    """A module's parameters, and how they are moved."""

    def __init__(self, module: nn.Module, rules: list[torch.optim.Optimizer]) -> None:
        self.module, self.rules = module, rules
        self.peaks = [rule.param_groups[0]["lr"] for rule in rules]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def step(self, rate: float) -> None:
        """One of every optimizer, by the gradients. rate: of the peaks."""
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for rule, peak in zip(self.rules, self.peaks, strict=True):
            rule.param_groups[0]["lr"] = peak * rate
            rule.step()
            rule.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {
            "module": self.module.state_dict(),
            "rules": [rule.state_dict() for rule in self.rules],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(saved)


class DrafterModel(Weights):
    """The cell or head over the target's states that is trained: `module` in float32, and `work`,
    what is run, in the target's own dtype."""

    def __init__(self, cell: nn.Module, dtype: torch.dtype, recipe: RecurrentRecipe) -> None:
        matrices = [p for p in cell.parameters() if p.ndim == 2]
        vectors = [p for p in cell.parameters() if p.ndim < 2]
        fused = next(cell.parameters()).device.type == "cuda"
        rules = optimizers(matrices, vectors, recipe, decay=0.0, fused=fused)
        super().__init__(cell.requires_grad_(True), rules)
        self.work = copy.deepcopy(cell).to(dtype)

    def step(self, rate: float) -> None:
        """Step by what lies in `work`'s gradients."""
        pairs = list(zip(self.module.parameters(), self.work.parameters(), strict=True))
        for kept, used in pairs:
            assert used.grad is not None
            kept.grad, used.grad = used.grad.float(), None
        super().step(rate)
        with torch.no_grad():
            for kept, used in pairs:
                used.copy_(kept)

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.work.load_state_dict(state["module"])


class Float32Muon(torch.optim.Muon):
    """torch.optim.Muon for processors that do not multiply bfloat16, in which its products are
    whatever the weights are; with the same state, so that either goes on from the other's."""

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
