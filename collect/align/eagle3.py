"""Training of an EAGLE-3 head: as of a recurrent drafter, from the target's states after three of
its layers instead of its last ones (Li et al., "EAGLE-3", 2503.01840).

Every step of a draft is trained as it will be run (training-time test), and its label is the
target's own distribution where it predicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.sampling.draft_vocab import DraftVocab

from .card import facts, finish
from .eagle3_module import Eagle3Module, HeadSizes
from .held_out import DEEP, HeldOut, Part
from .packed_batch import PackedBatch, flatten
from .recipe import RecurrentRecipe
from .recurrent import SOFTER, DistillationLoss, Drafting, Point, card_of
from .resuming import content_of
from .teacher import Teacher
from .tokens import Tokens
from .training import train

MEASURED = 32  # texts that a new head begins from
RIDGE = 1e-2
ROWS = 8  # of held-out texts that are drafted over at once


def usual_features(layers: int) -> tuple[int, ...]:
    """After which of a target's layers a head reads states: low, middle and high."""
    return tuple(sorted({min(2, layers - 1), max(1, layers // 2), max(1, layers - 3)}))


def new_head(teacher: Teacher, sizes: HeadSizes, rows: Tensor, seed: int) -> Eagle3Module:
    """A head in float32 that at first hands on what is nearest to the target's final state, at
    SOFTER of the size that the target's head is used to.

    rows: [B, T] ids of any text.
    """
    torch.manual_seed(seed)
    module = Eagle3Module(sizes)
    features, final = teacher.layers(rows.to(teacher.device), sizes.features)
    x = torch.cat(features, -1).flatten(0, 1).double()
    y = final.flatten(0, 1).double()
    gram = x.T @ x
    lift = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device).double()
    nearest = torch.linalg.solve(gram + lift, x.T @ y)
    with torch.no_grad():
        module.fc.copy_(nearest.T.float().cpu())
        module.norm.mul_(SOFTER * y.square().mean().sqrt().float().cpu())
    return module.to(teacher.device)


class HeadLoss(DistillationLoss):
    """A batch's loss, of a head."""

    def _read(self, cell: Any, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        features, final = self._teacher.layers(batch.rows, cell.sizes.features)
        embedded = F.embedding(batch.rows, self._teacher.embedding)
        read = cell(torch.cat(features, -1), embedded, self._recipe.steps)
        return read.flatten(1, 2)[:, batch.where], final.flatten(0, 1)[batch.where]


class HeadHeldOut(HeldOut):
    """Figures of a head; the target's states are read once and kept."""

    _features: dict[int, Tensor] | None = None

    def _read(self, part: Part, cell: Any) -> Tensor:
        self._features = self._features or {}
        if id(part) not in self._features:
            features, _ = self._teacher.layers(part.rows, cell.sizes.features)
            self._features[id(part)] = torch.cat(features, -1)
        made: list[Tensor] = []
        embedded = F.embedding(part.rows, self._teacher.embedding)
        for at in range(0, len(embedded), ROWS):
            rows = slice(at, at + ROWS)
            made.append(cell(self._features[id(part)][rows], embedded[rows], DEEP))
        return torch.cat(made, 1).flatten(1, 2)[:, part.where]


def train_head(
    out: Path,
    target: str,
    config: dict[str, Any],
    teacher: Teacher,
    vocab: DraftVocab,
    sizes: HeadSizes,
    tokens: Tokens,
    held_out: HeadHeldOut,
    recipe: RecurrentRecipe,
    program: str,
    report: Callable[[dict[str, float]], None],
) -> Point:
    """Train, or go on training; the curve's last point. OUT/model is the head's folder, written
    again at every point of the curve.

    target, config: as of `Eagle3Module.save`.
    program: how this process was called, for the card.
    report: as in `train`.
    """
    vocab.to(teacher.device)
    some = [tokens.text(row)[:512] for row in range(min(MEASURED, len(tokens)))]
    module = new_head(teacher, sizes, flatten(some).rows, recipe.seed)
    rows = teacher.head[vocab.to_target]
    started = time.time()

    def card(point: Point) -> dict[str, Any]:
        return {
            "kind": "eagle3",
            "target": target,
            **card_of(point, module, tokens, held_out),
            **facts(program, started, None, recipe),
        }

    def save(used: Eagle3Module, point: Point) -> None:
        def write(folder: Path) -> None:
            used.save(folder, vocab, rows, target, config)

        finish(out / "model", out.name, card(point), write)

    loss = HeadLoss(teacher, vocab, recipe)
    task = Drafting(module, vocab, teacher, tokens, held_out, recipe, save, loss)
    content = content_of(tokens, vocab, None, "eagle3")
    return Point(**train(task, recipe, out, report, content).curve[-1])
