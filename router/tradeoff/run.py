"""The whole job: measure every point of a sweep, read the curves, write tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from decoders.arms import ArmRecipe
from decoders.common.files import write_atomically
from decoders.common.provenance import measured_on, versions
from decoders.records import Request

from ..specbench.plots import png
from . import markdown, plots
from .measure import measure
from .summary import summarise
from .sweep import Sweep

if TYPE_CHECKING:
    from collect.queries import Query

    from ..protocols import RoutingEngine


def tradeoff(
    engine: RoutingEngine,
    sweep: Sweep,
    questions: Sequence[Query],
    request: Request,
    out: Path,
    *,
    seed: int = 0,
    hardware: dict[str, Any] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure, write tradeoff.json, .md and .png and arms.yaml into `out`; returns the summary.

    Call it again with the same settings to resume, or to add questions; other settings raise
    DraftpickError.

    engine: with the sweep's arms.
    """
    measured = measure(engine, questions, request, out, seed=seed, quiet=quiet)
    write_atomically(out / "arms.yaml", arms_yaml(sweep.arms, sweep.plugins))
    about = {
        "target": engine.target_name,
        "settings": measured.settings,
        "hardware": hardware or measured_on(),
        "versions": versions(),
    }
    summary = summarise(sweep.curves, measured.points, measured.rows, about)
    write_atomically(out / "tradeoff.json", json.dumps(summary, indent=2) + "\n")
    write_atomically(out / "tradeoff.md", markdown.render(summary))
    (out / "tradeoff.png").write_bytes(png(plots.draw(summary)))
    return summary


def arms_yaml(arms: dict[str, ArmRecipe], plugins: Sequence[str] = ()) -> str:
    """The points as an arms file, for `--config` of the other commands; plugins: as it names."""
    bodies = {
        name: recipe.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        for name, recipe in arms.items()
    }
    document = {"plugins": list(plugins), "arms": bodies} if plugins else {"arms": bodies}
    return yaml.safe_dump(document, sort_keys=False)
