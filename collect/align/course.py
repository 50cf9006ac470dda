"""How far a training run has come: its learning curve, and the file from which it resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decoders.backends.recurrent.cell import RecurrentCell
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.sampling.draft_vocab import DraftVocab

from . import checkpoint
from .held_out import Figures, HeldOut
from .schedule import CHECKPOINT
from .student import RecurrentRecipe, Student

CURVE = "curve.jsonl"
FIRST_POINT, FURTHER = 500_000, 2.0  # figures are taken at positions ever further apart


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


@dataclass
class Course:
    """step, positions and seconds so far; the curve's points as JSON-ready records."""

    step: int = 0
    positions: int = 0
    seconds: float = 0.0
    next_point: float = field(default_factory=lambda: FIRST_POINT)
    curve: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def resumed(cls, folder: Path, recipe: RecurrentRecipe, student: Student) -> Course:
        """How far the folder's run came, the student as it was then; a new one where there is none.
        Raises DraftpickError for a run with another recipe."""
        path = folder / CHECKPOINT
        state = checkpoint.kept(path, student.device)
        if state is None:
            return cls()
        if state["recipe"] != json.dumps(asdict(recipe)):
            raise DraftpickError(
                f"{folder} holds a run with another recipe ({state['recipe']}); name another "
                f"--out, or delete {path} to start over"
            )
        student.restore(state["student"])
        return cls(**json.loads(state["course"]))

    def mark(
        self,
        loss: float,
        student: Student,
        held_out: HeldOut,
        vocab: DraftVocab,
        save: Callable[[RecurrentCell, Point], None],
    ) -> Point:
        """A point of the curve, here. Raises DraftpickError where the loss is no number."""
        if not math.isfinite(loss):
            raise DraftpickError(
                f"the loss is {loss} after {self.step} steps; lower --lr and --matrix-lr"
            )
        cell = student.result()
        figures = held_out.figures(cell, vocab)
        point = Point(self.step, self.positions, round(self.seconds, 2), loss, figures)
        self.curve = [past for past in self.curve if past["step"] < self.step] + [asdict(point)]
        while self.next_point <= self.positions:
            self.next_point *= FURTHER
        save(cell, point)
        return point

    def keep(self, folder: Path, recipe: RecurrentRecipe, student: Student) -> None:
        """Write the curve and the checkpoint, each beside its place first."""
        lines = "".join(json.dumps(point) + "\n" for point in self.curve)
        write_atomically(folder / CURVE, lines)
        state = {
            "recipe": json.dumps(asdict(recipe)),
            "course": json.dumps(asdict(self)),
            "student": student.state(),
        }
        checkpoint.keep(folder / CHECKPOINT, state)
