"""How far a training run has come: its learning curve, and the file from which it resumes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically

from . import checkpoint
from .recipe import Recipe
from .weights import Weights

CHECKPOINT = "training.safetensors"
CURVE = "curve.jsonl"


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
    def resumed(cls, folder: Path, recipe: Recipe, weights: Weights) -> TrainingState:
        """How far the folder's run came, the weights as they were then; a new one where there is
        none. Raises DraftpickError for a run with another recipe."""
        path = folder / CHECKPOINT
        state = checkpoint.kept(path, weights.device)
        if state is None:
            return cls()
        if state["recipe"] != json.dumps(asdict(recipe)) or "weights" not in state:
            raise DraftpickError(
                f"{folder} holds a run with another recipe ({state['recipe']}) or by another "
                f"version; name another --out, or delete {path} to start over"
            )
        weights.restore(state["weights"])
        return cls(**json.loads(state["state"]))

    def keep(self, folder: Path, recipe: Recipe, weights: Weights) -> None:
        """Write the curve and the checkpoint, each next to its place first."""
        if self.curve:
            lines = "".join(json.dumps(point) + "\n" for point in self.curve)
            write_atomically(folder / CURVE, lines)
        state = {
            "recipe": json.dumps(asdict(recipe)),
            "state": json.dumps(asdict(self)),
            "weights": weights.state(),
        }
        checkpoint.keep(folder / CHECKPOINT, state)
