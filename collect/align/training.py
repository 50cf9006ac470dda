"""The training loop: batches without end, warm-up and cosine, and checkpoints to resume from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from decoders.backends.threads import threads
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically

from . import checkpoint
from .recipe import Recipe, schedule
from .weights import Weights

CHECKPOINT = "training.pt"
CURVE = "curve.jsonl"
REPORT_EVERY = 25  # steps; a report waits for the device
REPORT_S = 10.0  # or after so long


@dataclass
class TrainingState:
    """step, positions and seconds so far; loss: of late; the curve's points as JSON-ready records,
    where figures are taken."""

    step: int = 0
    positions: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def resumed(cls, folder: Path, recipe: Recipe, weights: Weights, content: str) -> TrainingState:
        """How far the folder's run came, the weights as they were then; a new one where there is
        none. Raises DraftpickError for a run with another recipe or content."""
        path = folder / CHECKPOINT
        state = checkpoint.kept(path, weights.device)
        if state is None:
            return cls()
        same = state["recipe"] == json.dumps(asdict(recipe)) and state.get("content") == content
        if not same or "weights" not in state:
            raise DraftpickError(
                f"{folder} holds a run with another recipe ({state['recipe']}), on other texts, of "
                "another kind, size or start, or by another version; name another --out, or delete "
                f"{path} to start over"
            )
        weights.restore(state["weights"])
        return cls(**json.loads(state["state"]))

    def keep(self, folder: Path, recipe: Recipe, weights: Weights, content: str) -> None:
        """Write the curve and the checkpoint, each next to its place first."""
        if self.curve:
            lines = "".join(json.dumps(point) + "\n" for point in self.curve)
            write_atomically(folder / CURVE, lines)
        state = {
            "recipe": json.dumps(asdict(recipe)),
            "content": content,
            "state": json.dumps(asdict(self)),
            "weights": weights.state(),
        }
        checkpoint.keep(folder / CHECKPOINT, state)


class Task(Protocol):
    """What is trained, and on what.

    checkpoint_s: seconds between two checkpoints, at most.
    """

    checkpoint_s: float = 120.0
    weights: Weights

    def steps(self, epochs: int) -> int:
        """Batches in a number of epochs."""
        ...

    def batches(self, skipped: int) -> Generator[Any, None, None]:
        """Epoch after epoch without end, the first `skipped` left out."""
        ...

    def positions(self, batch: Any) -> int:
        """Tokens of a batch."""
        ...

    def rehearse(self, batch: Any) -> None:
        """What is built or compiled at the first use: it is not counted as training."""
        return

    def loss(self, batch: Any) -> Tensor:
        """[]."""
        ...

    def due(self, state: TrainingState) -> bool:
        """Whether a checkpoint is to be taken here, whatever the time."""
        return False

    def mark(self, state: TrainingState, last: bool) -> None:
        """Called at every checkpoint before it is written. last: whether training ends there."""
        return


def train(
    task: Task,
    recipe: Recipe,
    folder: Path,
    report: Callable[[dict[str, float]], None],
    content: str = "",
) -> TrainingState:
    """Train until the recipe is done.

    report: each REPORT_EVERY steps or REPORT_S seconds, with step, progress (0 to 1), loss and
        tokens_per_s.
    folder: keeps the curve, if any, and the state from which the same call resumes.
    content: what else decides the run, as of `content_of`.

    Raises DraftpickError where the loss is no number any more, and where the folder holds the run
    of another recipe or content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = task.weights
    state = TrainingState.resumed(folder, recipe, weights, content)
    total = task.steps(recipe.epochs) if recipe.minutes is None else None
    smooth = torch.tensor(state.loss, device=weights.device)

    def keep(last: bool = False) -> None:
        state.loss = smooth.item()
        if not math.isfinite(state.loss):
            raise DraftpickError(
                f"the loss is {state.loss} after {state.step} steps; lower --lr and --matrix-lr"
            )
        task.mark(state, last)
        state.keep(folder, recipe, weights, content)

    with closing(task.batches(state.step)) as batches:
        batch = next(batches)
        task.rehearse(batch)
        before = time.monotonic() - state.seconds
        marked = reported = time.monotonic()
        seen = state.positions
        while True:
            now = time.monotonic()
            state.seconds = now - before
            done = state.step / total if total else state.seconds / 60 / (recipe.minutes or 1)
            if done >= 1:
                break
            if task.due(state) or now - marked > task.checkpoint_s:
                keep()
                marked = time.monotonic()
            threads().adapt()
            loss = task.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            weights.step(schedule(done, recipe.warmup))
            smooth = loss.detach() if state.step == 0 else smooth.lerp(loss.detach(), 0.05)
            state.step += 1
            state.positions += task.positions(batch)
            batch = next(batches)
            now = time.monotonic()
            if state.step % REPORT_EVERY == 0 or now - reported > REPORT_S:
                value, now = smooth.item(), time.monotonic()
                speed = (state.positions - seen) / (now - reported)
                report({"step": state.step, "progress": done, "loss": value, "tokens_per_s": speed})
                seen, reported = state.positions, now
    keep(last=True)
    return state
