"""A recurrent drafter while it is trained: its recipe, its weights, their averages, the rules.

Weights are kept in float32, and are run as they will be run later, in the target's own dtype.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import torch

from decoders.backends.recurrent.cell import RecurrentCell


@dataclass(frozen=True)
class RecurrentRecipe:
    """Everything that decides a run, written beside its result.

    minutes: train for this time, figures included, with the schedule to match; None trains
        `epochs`.
    batch_tokens: padded positions a step.
    steps: tokens drafted ahead in training, step i counting fade^(i - 1).
    lr: for vectors (AdamW).
    matrix_lr: for matrices (Muon).
    tv: the share of total variation in the loss from `tv_from` of the run on.
    ema: decay of averaged weights, which are then the result; 0 for none.
    noise: added to a state, as a share of its size, against learning few texts by heart.
    dropout: share of a state left out, likewise.
    longest: a text above it keeps its end.
    compiled: by torch.compile.
    """

    minutes: float | None = None
    epochs: int = 1
    batch_tokens: int = 32768
    steps: int = 4
    fade: float = 0.8
    lr: float = 3e-3
    matrix_lr: float = 2e-2
    weight_decay: float = 0.05
    warmup: float = 0.03
    tv: float = 0.0
    tv_from: float = 0.7
    ema: float = 0.0
    noise: float = 0.0
    dropout: float = 0.0
    longest: int = 4096
    compiled: bool = False
    seed: int = 0


class Student:
    """The cell that is trained: `master` in float32, and `work`, what is run, in another dtype."""

    def __init__(self, cell: RecurrentCell, dtype: torch.dtype, recipe: RecurrentRecipe) -> None:
        self.master = cell.requires_grad_(True)
        self.work = copy.deepcopy(cell).to(dtype)
        self.rules = optimizers(cell, recipe)
        self.peaks = [rule.param_groups[0]["lr"] for rule in self.rules]
        self.average = [p.detach().clone() for p in cell.parameters()] if recipe.ema else []
        self._ema = recipe.ema

    @property
    def device(self) -> torch.device:
        return self.master.norm.device

    def step(self, rate: float, number: int) -> None:
        """One of every rule, by what lies in `work`'s gradients. rate: of the peaks."""
        pairs = list(zip(self.master.parameters(), self.work.parameters(), strict=True))
        for kept, used in pairs:
            assert used.grad is not None
            kept.grad, used.grad = used.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
        for rule, peak in zip(self.rules, self.peaks, strict=True):
            rule.param_groups[0]["lr"] = peak * rate
            rule.step()
        with torch.no_grad():
            for kept, used in pairs:
                used.copy_(kept)
            decay = min(self._ema, (1 + number) / (10 + number))
            for mean, kept in zip(self.average, self.master.parameters(), strict=False):
                mean.lerp_(kept, 1 - decay)

    def result(self) -> RecurrentCell:
        """What would be saved now: the averaged weights where there are any."""
        if not self.average:
            return self.work
        cell = copy.deepcopy(self.work)
        with torch.no_grad():
            for used, mean in zip(cell.parameters(), self.average, strict=True):
                used.copy_(mean)
        return cell

    def state(self) -> dict[str, Any]:
        return {
            "module": self.master.state_dict(),
            "rules": [rule.state_dict() for rule in self.rules],
            "average": self.average,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.master.load_state_dict(state["module"])
        self.work.load_state_dict(state["module"])
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(saved)
        self.average = list(state["average"])


def optimizers(cell: RecurrentCell, recipe: RecurrentRecipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the norms; one call each on a GPU."""
    matrices = [p for p in cell.parameters() if p.ndim == 2]
    vectors = [p for p in cell.parameters() if p.ndim < 2]
    decay, fused = recipe.weight_decay, cell.norm.device.type == "cuda"
    if not hasattr(torch.optim, "Muon"):
        print("this torch has no Muon; matrices are trained by AdamW", file=sys.stderr)
        return [torch.optim.AdamW(cell.parameters(), recipe.lr, (0.9, 0.95), weight_decay=decay)]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=decay),
        torch.optim.AdamW(vectors, recipe.lr, (0.9, 0.95), weight_decay=0.0, fused=fused),
    ]
