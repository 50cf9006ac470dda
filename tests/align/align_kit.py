"""What several trainings here are made with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from collect.align.config import AlignConfig
from collect.align.recipe import Recipe, RecurrentRecipe
from router.cli import make_app

RECIPE = Recipe(epochs=10, batch_tokens=256, lr=1e-2, matrix_lr=2e-2, seed=1)
ON_STATES = RecurrentRecipe(epochs=6, batch_tokens=160, steps=3, lr=1e-2, matrix_lr=1e-2)


def nothing(*args: Any) -> None:
    pass


def config_for(
    kind: str, out: Path, target: Path, written: tuple[Path, Path], **more: Any
) -> AlignConfig:
    """written: queries, and the target's answers to them."""
    sizes = {"vocab_size": 44, "width": 32} | more
    return AlignConfig(kind, out, written[:1], written[1:], str(target), "cpu", **sizes)


def command(*given: object) -> Result:
    """`draftpick align` on a CPU."""
    arguments = ["align", *map(str, given), "--device", "cpu"]
    return CliRunner().invoke(make_app(), arguments, catch_exceptions=False)


def endless(target: Path, place: Path) -> Path:
    """A copy of the target that names no token as an answer's end."""
    copy = shutil.copytree(target, place / "endless")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**config, "eos_token_id": None}))
    return copy


def dies_after(
    patch: pytest.MonkeyPatch, weights: type, steps: int, run: Callable[[], object]
) -> None:
    """A training that is killed after so many steps of its weights."""
    step, left = weights.step, iter(range(steps))

    def dies(*given: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        step(*given)

    with patch.context() as killed:
        killed.setattr(weights, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            run()
