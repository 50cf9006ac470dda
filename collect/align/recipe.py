"""What decides a training run, and its learning rates."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run, written next to its result.

    minutes: train for this time, with the schedule to match; None trains `epochs`.
    batch_tokens: padded positions a step.
    lr: for embeddings and vectors (AdamW).
    matrix_lr: for matrices (Muon).
    """

    epochs: int = 4
    minutes: float | None = None
    batch_tokens: int = 4096
    lr: float = 3e-3
    matrix_lr: float = 2e-2
    weight_decay: float = 0.05
    warmup: float = 0.03
    seed: int = 0


@dataclass(frozen=True)
class RecurrentRecipe(Recipe):
    """Recipe of a recurrent drafter; its minutes include the figures of the learning curve.

    steps: tokens drafted ahead in training, step i counting fade^(i - 1).
    longest: a text above it keeps its end.
    prompts: whether prompts are trained on, or answers alone.
    """

    epochs: int = 1
    batch_tokens: int = 32768
    steps: int = 4
    fade: float = 0.8
    longest: int = 4096
    prompts: bool = True


def schedule(progress: float, warmup: float) -> float:
    """Share of the peak rate: a line up over the first `warmup` of a run, then a cosine to 2%."""
    if progress < warmup:
        return progress / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
