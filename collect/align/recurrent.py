"""Training of a recurrent drafter: every position of any text that the target reads, k steps each.

The label of a step is the target's own distribution where it predicts, so the text need not be the
target's. Nothing is stored: the frozen target reads each batch as it comes. Zhang et al.,
"Recurrent Drafter" (2403.09919), distil so; Zhang et al., "HASS" (2408.15766), train several steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.llama.model import capped
from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.common.sync import synchronize
from decoders.sampling.draft_vocab import DraftVocab

from . import training
from .held_out import Figures, HeldOut, unroll
from .kept_states import KeptStates
from .packed_batch import PackedBatch, Stream, on_device
from .recipe import RecurrentRecipe
from .teacher import Teacher
from .tokens import Tokens
from .training import TrainingState
from .weights import DrafterModel

FIRST_POINT, FURTHER = 500_000, 2.0  # figures are taken at positions ever further apart
# Softens the distribution of one token earlier, which else costs 9 nats instead of 5.
SOFTER = 0.3
FIGURES = 0.05  # of the time, at most, but for those at FIRST_POINT and further
MULTIPLE = 512  # a batch's positions are padded up to a multiple of it


def new_cell(teacher: Teacher, config: CellConfig, rows: Tensor, seed: int) -> RecurrentCell:
    """A cell in float32 that at first hands on what it is given, at SOFTER of the size that the
    head is used to.

    rows: [B, T] ids of any text, to measure that size.
    """
    torch.manual_seed(seed)
    cell = RecurrentCell(config)
    size = teacher.states(rows.to(teacher.device)).float().square().mean().sqrt()
    with torch.no_grad():
        cell.norm.mul_(SOFTER * size.cpu())
    return cell.to(teacher.device)


class DistillationLoss:
    """A batch's loss: the target reads it, the drafter takes its steps from every position."""

    def __init__(self, teacher: Teacher, vocab: DraftVocab, recipe: RecurrentRecipe) -> None:
        self._teacher, self._recipe = teacher, recipe
        self._rows = teacher.head[vocab.to_target].contiguous()  # [N, d]
        self._chunk = 8192 if teacher.device.type == "cuda" else 1024

    def loss(self, cell: nn.Module, batch: PackedBatch) -> Tensor:
        """[], its gradient for the cell's weights."""
        recipe = self._recipe
        read, final = self._read(cell, batch)
        weights = step_weights(batch.at, recipe.steps, recipe.fade)
        cap = self._teacher.shape.logit_cap
        parts = read, final, self._rows, weights, self._chunk, cap
        loss: Tensor = Distilled.apply(*parts)  # type: ignore[no-untyped-call]
        return loss

    def _read(self, cell: Any, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """What the drafter's steps have for the head [k, M, d], and the target's states [M, d]."""
        teacher = self._teacher
        final = batch.final  # [M, d]
        if final is None:
            final = teacher.states(batch.rows).flatten(0, 1)[batch.where]
        return unroll(cell, final, teacher.embedding[batch.ids], self._recipe.steps), final

    def rehearse(self, model: DrafterModel, batch: PackedBatch) -> None:
        """One pass and back that changes nothing: what is built at the first use is not counted as
        training."""
        self.loss(model.work, batch).backward()  # type: ignore[no-untyped-call]
        model.work.zero_grad(set_to_none=True)
        synchronize(self._teacher.device)


@dataclass(frozen=True)
class Point:
    """One place of the learning curve.

    positions: trained on so far.
    seconds: of the run.
    loss: of late.
    figures: `HeldOut.figures`.
    """

    step: int
    positions: int
    seconds: float
    loss: float
    figures: Figures

    @property
    def acceptance(self) -> dict[str, float]:
        """How often the first drafted token is right, by task."""
        return {task: found["first"] for task, found in self.figures.items() if "first" in found}


def card_of(point: Point, module: nn.Module, tokens: Tokens, held_out: HeldOut) -> dict[str, Any]:
    """What a card says of a training, besides `facts`. tokens: those trained on."""
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "acceptance": {task: round(share, 4) for task, share in point.acceptance.items()},
        "figures": point.figures,
        "tasks": sorted(set(tokens.names().tolist())),
        "queries": len(tokens),
        "held_out_queries": held_out.texts,
        "answer_tokens": int((tokens.lengths - tokens.answer).sum()),
        "positions": point.positions,
    }


class Drafting(training.Task):
    """A cell, or a head, in float32 and the texts that it learns from, for `training.train`.

    save: called at every point of the curve with the cell as it is then.
    loss: None is a cell's.
    states: the target's along the texts, where they are kept.

    Raises DraftpickError where there is no text.
    """

    checkpoint_s = 60.0
    _next_s = 0.0  # of the run, when another point of the curve may be taken

    def __init__(
        self,
        cell: nn.Module,
        vocab: DraftVocab,
        teacher: Teacher,
        tokens: Tokens,
        held_out: HeldOut,
        recipe: RecurrentRecipe,
        save: Callable[[Any, Point], None],
        loss: DistillationLoss | None = None,
        states: KeptStates | None = None,
    ) -> None:
        self._vocab, self._held_out, self._recipe, self._save = vocab, held_out, recipe, save
        self._stream = Stream(
            tokens,
            recipe.batch_tokens,
            min(recipe.longest, teacher.context),
            MULTIPLE,
            recipe.seed,
            answers=not recipe.prompts,
            states=None if states is None else states.of,
        )
        self.weights: DrafterModel = DrafterModel(cell, teacher.dtype, recipe)
        self._loss = loss or DistillationLoss(teacher, vocab, recipe)

    def steps(self, epochs: int) -> int:
        return self._stream.steps(epochs)

    def batches(self, skipped: int) -> Generator[PackedBatch, None, None]:
        return on_device(self._stream.batches(skipped), self.weights.device)

    def positions(self, batch: PackedBatch) -> int:
        return batch.positions

    def rehearse(self, batch: PackedBatch) -> None:
        self._loss.rehearse(self.weights, batch)

    def loss(self, batch: PackedBatch) -> Tensor:
        return self._loss.loss(self.weights.work, batch)

    def due(self, state: TrainingState) -> bool:
        marked, point = (state.curve[-1]["positions"] if state.curve else 0), FIRST_POINT * 1.0
        while point <= marked:
            point *= FURTHER
        return state.positions >= point

    def mark(self, state: TrainingState, last: bool) -> None:
        """A point of the curve, where it is due, ends the run, or does not take too much of it."""
        if not last and not self.due(state) and state.seconds < self._next_s:
            return
        cell, began = self.weights.work, time.monotonic()
        figures = self._held_out.figures(cell, self._vocab)
        self._next_s = state.seconds + (time.monotonic() - began) / FIGURES
        seconds = round(state.seconds, 2)
        point = Point(state.step, state.positions, seconds, state.loss, figures)
        state.curve = [past for past in state.curve if past["step"] < state.step]
        state.curve.append(asdict(point))
        self._save(cell, point)


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


class Distilled(torch.autograd.Function):
    """Weighted sum of losses, []; its gradient goes to `read` alone.

    Logits over thousands of tokens for every position and step are far larger than anything else
    in training. They are made a chunk of positions at a time, and each chunk is turned at once into
    its loss and its gradient (q - p for the divergence): none is kept. The target's distribution at
    a position serves every step that predicts there.

    read: [k, M, d], ready for the head, of each step at the position that it predicts at.
    final: [M, d] the target's there.
    rows: [N, d] the head's over the draft vocabulary, the only tokens that count.
    weights: [k, M] in float32, 0 where a position does not count.
    cap: of the target's logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        read: Tensor,
        final: Tensor,
        rows: Tensor,
        weights: Tensor,
        chunk: int,
        cap: float | None,
    ) -> Tensor:
        loss = weights.new_zeros(())
        gradient = torch.empty_like(read)
        for first in range(0, len(final), chunk):
            part = slice(first, first + chunk)
            p, certainty = distribution(capped(F.linear(final[part], rows), cap))
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
        return gradient * outside[0].to(gradient.dtype), None, None, None, None, None


def step_weights(at: Tensor, steps: int, fade: float) -> Tensor:
    """[k, M] in float32: what each position weighs at each step; 1 in all.

    at: [M] places in the texts, -1 for padding. Step i predicts at a place only from i before it,
    in the same text. Step i counts fade^(i - 1), as a mean over its positions.
    """
    counted = torch.stack([at >= step for step in range(1, steps + 1)]).float()  # [k, M]
    mean = counted / counted.sum(1, keepdim=True).clamp(min=1)
    share = fade ** torch.arange(steps, device=at.device)
    return mean * (share / share.sum()).unsqueeze(1)
