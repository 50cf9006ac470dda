"""The whole job: measure every point of a sweep, read the curves, write tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from decoders.recipes import ArmRecipe
from decoders.records import Request, Sampling

from .. import telemetry
from ..route import Router
from ..specbench.command import ask_all
from ..specbench.journal import write_atomically
from ..specbench.plots import png
from ..specbench.records import BASELINE, Row
from . import markdown, plots
from .points import first_answers, points_of
from .summary import summarise
from .sweep import Sweep

if TYPE_CHECKING:
    from decoders.queries import Query

    from ..seams import RoutingEngine


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

    engine: with the sweep's arms. Killed and started again with the same settings it goes on, with
    more questions too; other settings raise DraftpickError.
    """
    router = Router(engine, None)
    settings, rows = ask_all(router, questions, request, out, seed=seed, quiet=quiet)
    write_atomically(out / "arms.yaml", arms_yaml(sweep.arms))
    points = points_of(
        rows,
        greedy_answers(router, questions, request, rows, out, seed=seed, quiet=quiet),
        greedy=request.sampling.greedy,
        eos_ids=engine.eos_ids,
        seed=seed,
    )
    about = {
        "target": engine.target_name,
        "settings": settings,
        "hardware": hardware or telemetry.hardware(),
        "versions": telemetry.versions(),
    }
    summary = summarise(sweep.curves, points, rows, about)
    write_atomically(out / "tradeoff.json", json.dumps(summary, indent=2) + "\n")
    write_atomically(out / "tradeoff.md", markdown.render(summary))
    (out / "tradeoff.png").write_bytes(png(plots.draw(summary)))
    return summary


def greedy_answers(
    router: Router,
    questions: Sequence[Query],
    request: Request,
    rows: Sequence[Row],
    out: Path,
    *,
    seed: int,
    quiet: bool,
) -> dict[str, str]:
    """The target's own greedy answers by question id. They stand in the rows where those are
    greedy; where they were sampled the target is asked again, once, into `out`/greedy."""
    if not request.sampling.greedy:
        plain = replace(request, sampling=Sampling())
        folder = out / "greedy"
        _, rows = ask_all(router, questions, plain, folder, arms=[BASELINE], seed=seed, quiet=quiet)
    return first_answers(rows)


def arms_yaml(arms: dict[str, ArmRecipe]) -> str:
    """The points as an arms file, for `--config` of the other commands."""
    bodies = {
        name: recipe.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        for name, recipe in arms.items()
    }
    return yaml.safe_dump({"arms": bodies}, sort_keys=False)
