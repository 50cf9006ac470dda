"""A drafter over the target's states while it is trained: its weights, and their averages.

Weights are kept in float32, and are run as they will be run later, in the target's own dtype.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from .recipe import RecurrentRecipe
from .weights import Weights, optimizers


class DrafterModel(Weights):
    """The cell or head that is trained: `module` in float32, and `work`, what is run, in another
    dtype."""

    def __init__(self, cell: nn.Module, dtype: torch.dtype, recipe: RecurrentRecipe) -> None:
        matrices = [p for p in cell.parameters() if p.ndim == 2]
        vectors = [p for p in cell.parameters() if p.ndim < 2]
        fused = next(cell.parameters()).device.type == "cuda"
        rules = optimizers(matrices, vectors, recipe, decay=0.0, fused=fused)
        super().__init__(cell.requires_grad_(True), rules)
        self.work = copy.deepcopy(cell).to(dtype)
        self.average = [p.detach().clone() for p in cell.parameters()] if recipe.ema else []
        self._ema = recipe.ema

    def step(self, rate: float, number: int) -> None:
        """By what lies in `work`'s gradients."""
        pairs = list(zip(self.module.parameters(), self.work.parameters(), strict=True))
        for kept, used in pairs:
            assert used.grad is not None
            kept.grad, used.grad = used.grad.float(), None
        super().step(rate, number)
        with torch.no_grad():
            for kept, used in pairs:
                used.copy_(kept)
            decay = min(self._ema, (1 + number) / (10 + number))
            for mean, kept in zip(self.average, self.module.parameters(), strict=False):
                mean.lerp_(kept, 1 - decay)

    def result(self) -> nn.Module:
        """What would be saved now: the averaged weights where there are any."""
        if not self.average:
            return self.work
        cell = copy.deepcopy(self.work)
        with torch.no_grad():
            for used, mean in zip(cell.parameters(), self.average, strict=True):
                used.copy_(mean)
        return cell

    def state(self) -> dict[str, Any]:
        return super().state() | {"average": self.average}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.work.load_state_dict(state["module"])
        self.average = list(state["average"])
