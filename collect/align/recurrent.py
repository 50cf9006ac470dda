"""Training of a recurrent drafter: every position of any text that the target reads, k steps each.

The label of a step is the target's own distribution where it predicts, so the text need not be the
target's. Nothing is stored: the frozen target reads each batch as it comes. Zhang et al.,
"Recurrent Drafter" (2403.09919), distil so; Zhang et al., "HASS" (2408.15766), train several steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from decoders.backends.recurrent.cell import CellConfig, RecurrentCell
from decoders.backends.sync import synchronize
from decoders.sampling.draft_vocab import DraftVocab

from .course import Course, Point
from .distil import Pieces, distilled, pieces, step_weights
from .flat import Flat, Stream, on_device
from .held_out import HeldOut, unroll
from .schedule import schedule
from .student import RecurrentRecipe, Student
from .teacher import Teacher
from .tokens import Tokens

EVALUATE_EVERY_S = 60.0  # a point of the curve so often at least
REPORT_EVERY = 25  # steps; a report waits for the device
# What is handed on is the distribution of one token earlier: surely so it costs 9 nats, not 5.
SOFTER = 0.3
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


def stream_of(tokens: Tokens, teacher: Teacher, recipe: RecurrentRecipe) -> Stream:
    """The texts as the recipe takes them. Compiled code is of one size: batches are filled up."""
    multiple = recipe.batch_tokens if recipe.compiled else MULTIPLE
    longest = min(recipe.longest, teacher.context)
    return Stream(tokens, recipe.batch_tokens, longest, multiple, recipe.seed)


class Lesson:
    """A batch's loss: the target reads it, the student takes its steps from every position."""

    def __init__(self, teacher: Teacher, vocab: DraftVocab, recipe: RecurrentRecipe) -> None:
        self._teacher, self._recipe = teacher, recipe
        self._rows = teacher.head[vocab.to_target].contiguous()  # [N, d]
        self._unroll: Callable[[RecurrentCell, Tensor, Tensor, int], Tensor] = unroll
        self._pieces: Pieces = pieces
        self._chunk = 8192 if teacher.device.type == "cuda" else 1024
        self._chance = torch.Generator(teacher.device)
        if recipe.compiled:
            self._unroll = torch.compile(unroll, dynamic=False)
            self._pieces = torch.compile(pieces, dynamic=False)

    def loss(self, cell: RecurrentCell, flat: Flat, tv: float, number: int) -> Tensor:
        """[], its gradient for the cell's weights. number: of the step, which seeds its noise."""
        teacher, recipe = self._teacher, self._recipe
        final = teacher.states(flat.rows).flatten(0, 1)[flat.where]  # [M, d]
        given = final
        if recipe.noise or recipe.dropout:
            self._chance.manual_seed(1_000_003 * recipe.seed + number)
            given = disturbed(final, recipe.noise, recipe.dropout, self._chance)
        read = self._unroll(cell, given, teacher.embedding[flat.ids], recipe.steps)
        weights = step_weights(flat.at, recipe.steps, recipe.fade)
        return distilled(read, final, self._rows, weights, tv, self._chunk, self._pieces)

    def rehearse(self, student: Student, batch: Flat) -> None:
        """One pass and back that changes nothing: what is built or compiled at the first use is not
        counted as training. Where code cannot be compiled, say so and go on without."""
        recipe = self._recipe
        try:
            for tv in sorted({0.0, recipe.tv}):
                self.loss(student.work, batch, tv, 0).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a compiler fails in many ways, each of which means the same
            if not recipe.compiled or self._unroll is unroll:
                raise
            first = (str(error).splitlines() or [""])[0]
            print(f"not compiled ({type(error).__name__}: {first})", file=sys.stderr)
            self._unroll, self._pieces = unroll, pieces
            self.rehearse(student, batch)
        student.work.zero_grad(set_to_none=True)
        synchronize(self._teacher.device)


def disturbed(states: Tensor, noise: float, dropout: float, chance: torch.Generator) -> Tensor:
    """states [M, d] with noise of that share of their root mean square, and some numbers left out,
    the others grown by as much."""
    if noise:
        size = states.float().square().mean(-1, keepdim=True).sqrt().to(states.dtype)
        random = torch.empty_like(states).normal_(generator=chance)
        states = states + noise * size * random
    if dropout:
        kept = torch.empty_like(states).bernoulli_(1 - dropout, generator=chance)
        states = states * kept / (1 - dropout)
    return states


def train(
    cell: RecurrentCell,
    vocab: DraftVocab,
    teacher: Teacher,
    tokens: Tokens,
    held_out: HeldOut,
    recipe: RecurrentRecipe,
    folder: Path,
    save: Callable[[RecurrentCell, Point], None],
    report: Callable[[dict[str, float]], None],
) -> Point:
    """Train a cell in float32 on texts until the recipe is done; the last point of the curve.

    save: called at every point with the cell as it is then.
    report: each REPORT_EVERY steps, with step, progress (0 to 1), loss and tokens_per_s.
    folder: keeps the curve (JSON lines) and the state (training.pt) from which the same call
        resumes.

    Raises DraftpickError where there is no text, where the loss is no number any more, and where
    the folder holds another recipe's run.
    """
    stream = stream_of(tokens, teacher, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    student, lesson = Student(cell, teacher.dtype, recipe), Lesson(teacher, vocab, recipe)
    course = Course.resumed(folder, recipe, student)
    total = stream.steps(recipe.epochs) if recipe.minutes is None else None
    smooth = torch.tensor(course.curve[-1]["loss"] if course.curve else 0.0, device=teacher.device)
    with closing(on_device(stream.batches(course.step), teacher.device)) as batches:
        batch = next(batches)
        lesson.rehearse(student, batch)
        before = time.monotonic() - course.seconds
        marked = reported = time.monotonic()
        seen = course.positions
        while True:
            now = time.monotonic()
            course.seconds = now - before
            done = course.step / total if total else course.seconds / 60 / (recipe.minutes or 1)
            if done >= 1:
                break
            if course.positions >= course.next_point or now - marked > EVALUATE_EVERY_S:
                course.mark(smooth.item(), student, held_out, vocab, save)
                course.keep(folder, recipe, student)
                marked = time.monotonic()
            loss = lesson.loss(student.work, batch, _tv(recipe, done), course.step)
            loss.backward()  # type: ignore[no-untyped-call]
            student.step(schedule(done, recipe.warmup), course.step)
            smooth = loss.detach() if course.step == 0 else smooth.lerp(loss.detach(), 0.05)
            course.step += 1
            course.positions += batch.positions
            batch = next(batches)
            if course.step % REPORT_EVERY == 0:
                value, now = smooth.item(), time.monotonic()
                speed = (course.positions - seen) / (now - reported)
                report(
                    {"step": course.step, "progress": done, "loss": value, "tokens_per_s": speed}
                )
                seen, reported = course.positions, now
    last = course.mark(smooth.item(), student, held_out, vocab, save)
    course.keep(folder, recipe, student)
    return last


def _tv(recipe: RecurrentRecipe, done: float) -> float:
    return recipe.tv if done >= recipe.tv_from else 0.0
