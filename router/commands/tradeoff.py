"""`draftpick tradeoff`; heavy imports wait until the command runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from decoders.options import EngineOptions
from decoders.records import Request
from router.commands.listing import Listing
from router.commands.options import AsJson, model_options, names_in, takes

from .router_options import Experiment, Limit, Questions, Seed, Tasks, TrackingUri, answer_request

HELP = """Draw quality against latency for swept thresholds. Every value in the sweep file is an
arm; all arms and the target answer the same questions. The same command resumes a run that was
stopped.

\b
Examples:
  draftpick tradeoff sweep.yaml --limit 5 --out curves
  draftpick tradeoff sweep.yaml --temperature 1 --tasks translation --out hot
  draftpick generate "Hello" --config curves/arms.yaml --arm confidence@0.4
\b
A sweep file:
  sweep:
    confidence:
      arm: {kind: neural, drafter: draft-general, length: {kind: fixed, k: 8}}
      field: length.min_confidence
      values: [0.0, 0.2, 0.4, 0.6]
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application; it raises DraftpickError and PolicyError for the user's
    mistakes."""
    app.command("tradeoff", help=HELP, cls=Listing)(tradeoff)


@takes(request=answer_request, options=model_options)
def tradeoff(
    *,
    sweep: Annotated[Path, typer.Argument(metavar="YAML", help="The sweep file.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write into; re-run to resume.")
    ],
    questions: Questions = None,
    limit: Limit = None,
    tasks: Tasks = None,
    request: Request,
    seed: Seed = 0,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = "draftpick-tradeoff",
    as_json: AsJson = False,
    options: EngineOptions,
) -> None:
    from collect.queries import shipped_folder
    from decoders.common.provenance import measured_on

    from ..routing.loading import load_engine
    from ..specbench.protocol import load_questions
    from ..tradeoff import track
    from ..tradeoff.run import tradeoff as run
    from ..tradeoff.sweep import load_sweep

    # Mistakes that need no model are reported before one is loaded.
    request = replace(request, seed=seed)
    asked = load_questions(questions or [shipped_folder("test")], limit, seed, names_in(tasks))
    swept = load_sweep(sweep)
    track.reach(tracking_uri)
    engine = load_engine(replace(options, arms=swept.arms), list(swept.arms), request)
    precision = engine.target_fingerprint.rpartition("/")[2]
    hardware = measured_on(precision, options.device)
    summary = run(engine, swept, asked, request, out, seed=seed, hardware=hardware)
    run_id = track.log(summary, out, tracking_uri, experiment)
    _show(summary, as_json)
    print(f"written to {out}; MLflow run {run_id} of {experiment}", file=sys.stderr)


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from decoders.common.terminal import PIPE

    from ..specbench.bench import rich_tables
    from ..tradeoff.markdown import main_panels, panel_table, panel_title, point_table

    console = Console(width=None if sys.stdout.isatty() else PIPE)
    shown = rich_tables("Every point, over all questions", *point_table(summary), console.width)
    for panel in main_panels(summary):
        shown += rich_tables(panel_title(panel), *panel_table(panel), console.width)
    for table in shown:
        console.print(table)
