"""`draftpick align`: its defaults, without a command line or a model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from collect.align.recipe import Recipe
from decoders.common.errors import DraftpickError
from router.commands.with_records import made
from router.training.align import AlignOptions, AlignPlan, plan

OUT = Path("no-such-folder")


def planned(**options: Any) -> AlignPlan:
    return plan(made(AlignOptions, options))


def test_the_defaults() -> None:
    found = planned(out=OUT)
    config = found.config
    assert (config.kind, config.vocab_size, config.blocks) == ("drafter", 8192, 1)
    assert config.outputs == () and config.tasks is None and config.queries  # those that ship
    assert (found.recipe.lr, found.recipe.matrix_lr) == (Recipe.lr, Recipe.matrix_lr)
    assert not OUT.exists()


def test_defaults_of_a_kind() -> None:
    found = planned(out=OUT, kind="recurrent").config
    assert (found.vocab_size, found.blocks) == (6144, 2)


def test_names_and_lengths() -> None:
    found = planned(out=OUT, tasks="math, qa", max_new_tokens=32, context=64, outputs=[Path("o")])
    assert (found.config.tasks, found.config.max_answer) == (("math", "qa"), 32)
    assert (found.context, found.config.outputs) == (64, (Path("o"),))


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"minutes": 0.0}, {"lr": math.nan}, {"matrix_lr": math.inf}]
)
def test_numbers_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(DraftpickError, match="must be a number above 0"):
        planned(out=OUT, **options)
