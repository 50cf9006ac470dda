"""Training on the target's own answers: what a learner makes of a batch of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .calibration import Batch, Example, batches
from .learners import Learner, agreement
from .recipe import Recipe
from .training import Task
from .weights import Weights, autocast, optimizers


class Answers(Task):
    """A learner and its examples, for `training.train`."""

    def __init__(self, learner: Learner, examples: Sequence[Example], recipe: Recipe) -> None:
        self._learner, self._recipe = learner, recipe
        self._examples = [e for e in examples if not e.held_out]
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in learner.module.named_parameters():
            outer = any(part in name for part in ("embed", "shared", "head", "bias"))
            (matrices if parameter.ndim == 2 and not outer else rest).append(parameter)
        rules = optimizers(matrices, rest, recipe, recipe.weight_decay)
        self.weights = Weights(learner.module, rules)

    def steps(self, epochs: int) -> int:
        return epochs * len(self._epoch(0))

    def batches(self, skipped: int) -> Generator[Batch, None, None]:
        epoch, skipped = divmod(skipped, self.steps(1))
        while True:
            yield from self._epoch(epoch)[skipped:]
            epoch, skipped = epoch + 1, 0

    def _epoch(self, epoch: int) -> list[Batch]:
        recipe = self._recipe
        return batches(self._examples, recipe.batch_tokens, random.Random(recipe.seed + epoch))

    def positions(self, batch: Batch) -> int:
        return int(batch.ids.size)

    def loss(self, batch: Batch) -> Tensor:
        device = self.weights.device
        with autocast(device):
            return self._learner.loss(*tensors(batch, device))


def tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Its ids and labels, [B, T] each."""
    return torch.from_numpy(batch.ids).to(device), torch.from_numpy(batch.labels).to(device)


def evaluate(
    learner: Learner, examples: Sequence[Example], device: torch.device
) -> dict[str, float]:
    """Share of answer tokens whose draft argmax is the target's token, per task and `overall`.

    An answer's first token is left out: the target's own prefill gives it.
    """
    right, total = Counter[str](), Counter[str]()
    for batch in batches(examples, 8192, random.Random(0)):
        ids, labels = tensors(batch, device)
        with autocast(device):
            hits = agreement(learner, ids, labels).cpu().numpy()
        for task, hit, label in zip(batch.tasks, hits, batch.labels, strict=True):
            answer = np.flatnonzero(label >= 0)[1:]
            right[task] += int(hit[answer].sum())
            total[task] += len(answer)
    shares = {task: right[task] / max(1, total[task]) for task in sorted(right)}
    shares["overall"] = right.total() / max(1, total.total())
    return shares
