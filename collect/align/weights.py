"""Weights that are trained, and their optimizers: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .dtype import training_dtype
from .muon import Float32Muon
from .recipe import Recipe


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

    def step(self, rate: float, number: int) -> None:
        """One of every optimizer, by the gradients. rate: of the peaks. number: of the step."""
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
