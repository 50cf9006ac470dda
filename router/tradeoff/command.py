"""`draftpick tradeoff`; heavy imports wait until the command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from collect.listing import Listing

HELP = """Draw quality against latency: what does a looser or tighter threshold cost?

The sweep file names arm templates, one field of each, and the values it takes. Every value is an
arm; all of them and the target alone answer the same questions, interleaved. The tables say how
fast each method is at the target's own quality (or one point below it), and how good it is within
the target's own time; "not reached" where its curve does not get there. Quality is each task's
usual measure where a reference exists (BLEU, ROUGE-2, ROUGE-L, exact match), and everywhere the
agreement with the target's own greedy answer.

\b
  sweep:
    confidence:
      arm: {kind: neural, drafter: draft-general, length: {kind: fixed, k: 8}}
      field: length.min_confidence
      values: [0.0, 0.2, 0.4, 0.6]
  arms:                        # optional: single points beside the curves
    copying: {kind: max_gram, drafter: bigram}

Stopped at any moment and started again with the same options, it goes on. DIR holds tradeoff.md,
tradeoff.json and tradeoff.png, and arms.yaml: every point as an arm, for --config of the other
commands. The run is kept in MLflow.

\b
  draftpick tradeoff sweep.yaml --limit 5 --out curves
  draftpick tradeoff sweep.yaml --temperature 1 --tasks translation,summarization --out hot
  draftpick generate "Hello" --config curves/arms.yaml --arm confidence@0.4
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application; it raises DraftpickError and PolicyError for the user's
    mistakes."""
    app.command("tradeoff", help=HELP, cls=Listing)(tradeoff)


def tradeoff(
    sweep: Annotated[Path, typer.Argument(metavar="YAML", help="The sweep file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; gone on with.")],
    questions: Annotated[
        list[Path] | None, typer.Option(help="Question files. Default: the shipped test.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Questions a task, evenly chosen.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Only these tasks: a,b,c.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 keeps all.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(help="Choice and order of questions and arms.")] = 0,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow store. Default: mlruns/mlflow.db here.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment.")] = "draftpick-tradeoff",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    target: Annotated[
        str,
        typer.Option(help="The model that answers: a known name, hub id, folder or .gguf file."),
    ] = "smollm2-135m-instruct",
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float32 (exact), int8 or int4 (weights).")
    ] = "bfloat16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="{decoders.BACKENDS}.")] = "auto",
    context: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a prompt with its answer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|TEXT",
            help="Jinja chat template, or its file; default: the tokenizer's own.",
        ),
    ] = None,
) -> None:
    from collect.queries import shipped_folder
    from decoders.provenance import measured_on
    from decoders.records import Request, Sampling

    from ..route import load_engine
    from ..specbench.protocol import load_questions
    from . import track
    from .run import tradeoff as run
    from .sweep import load_sweep

    # Mistakes that need no model are told before one is loaded.
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    request = Request(max_new_tokens=max_new_tokens, sampling=sampling, seed=seed)
    wanted = [name.strip() for part in tasks or () for name in part.split(",") if name.strip()]
    asked = load_questions(questions or [shipped_folder("test")], limit, seed, wanted or None)
    swept = load_sweep(sweep)
    track.reach(tracking_uri)
    engine = load_engine(
        target, swept.arms, dtype, device, backend, context, list(swept.arms), request,
        chat_template=chat_template,
    )  # fmt: skip
    hardware = measured_on(dtype, device)
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

    from decoders.terminal import PIPE

    from ..specbench.bench import rich_tables
    from .markdown import main_panels, panel_table, panel_title, point_table

    console = Console(width=None if sys.stdout.isatty() else PIPE)
    shown = rich_tables("Every point, over all questions", *point_table(summary), console.width)
    for panel in main_panels(summary):
        shown += rich_tables(panel_title(panel), *panel_table(panel), console.width)
    for table in shown:
        console.print(table)
