"""`draftpick align`: its defaults, without a command line or a model."""

import math
from pathlib import Path
from typing import Any

import pytest

from collect.align.config import AlignConfig
from collect.align.recipe import Recipe
from decoders.common.errors import DraftpickError
from router.commands.with_records import made
from router.training.align import AlignOptions, plan

OUT = Path("no-such-folder")


def planned(**options: Any) -> tuple[AlignConfig, Recipe]:
    return plan(made(AlignOptions, options))


def test_the_defaults_and_what_is_given() -> None:
    config, recipe = planned(out=OUT)
    assert (config.kind, config.vocab_size, config.blocks) == ("drafter", 8192, 1)
    assert config.outputs == () and config.tasks is None and config.queries  # those that ship
    assert (recipe.lr, recipe.matrix_lr) == (Recipe.lr, Recipe.matrix_lr)
    more = {"tasks": "math, qa", "max_new_tokens": 32, "outputs": [Path("o")]}
    found, _ = planned(out=OUT, kind="recurrent", **more)
    assert (found.vocab_size, found.blocks) == (6144, 2)
    assert (found.tasks, found.max_answer, found.outputs) == (("math", "qa"), 32, (Path("o"),))
    assert not OUT.exists()


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"minutes": 0.0}, {"lr": math.nan}, {"matrix_lr": math.inf}]
)
def test_numbers_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(DraftpickError, match="must be a number above 0"):
        planned(out=OUT, **options)


def test_a_drafter_that_ships_is_named_or_a_folder(tmp_path: Path) -> None:
    starts = ("draft-general", str(tmp_path))
    config, other = (planned(out=tmp_path, start=Path(each))[0] for each in starts)
    assert config.start is not None and (config.start / "config.json").is_file()
    assert other.start == tmp_path
