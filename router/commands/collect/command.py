"""`draftpick collect`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from decoders.common.errors import DraftpickError
from decoders.common.terminal import progress

from ..options import AsJson
from .plan import CollectOptions, CollectPlan, SummaryPlan, plan

INTERRUPTED = 130  # what shells expect after Ctrl-C


def collect(options: CollectOptions, as_json: AsJson = False) -> None:
    """Run every arm on every query and store the outcomes. `draftpick train` computes rewards from
    them. The same command resumes a run that was stopped.

    \b
    Examples:
      draftpick collect --out rewards
      draftpick collect --queries my/*.jsonl --out rewards --limit 50
      draftpick collect --out rewards --embedder sentence
      draftpick collect --temperatures 0,1 --at-once 1,8,32 --out rewards
      draftpick collect --engine ray --ray-address auto --out rewards
      draftpick collect --summary rewards
    """
    asked = plan(options)
    if isinstance(asked, SummaryPlan):
        _summarise(asked, as_json)
    else:
        _collect(asked, as_json)


def _collect(plan: CollectPlan, as_json: bool) -> None:
    from .output import print_report
    from .run import run

    try:
        report = run(plan, progress("collecting", "answers"))
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {plan.out} is whole; run the same command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps({"out": str(plan.out), **asdict(report)}))
        return
    print_report(report, plan.out)
    if report.rows and report.errors == report.rows:
        raise DraftpickError(
            f"every row collected in this run is an error; see the `error` column "
            f"of {plan.out}/outcomes, fix the cause, and collect into another --out"
        )


def _summarise(plan: SummaryPlan, as_json: bool) -> None:
    from collect.store.collection import Collection
    from collect.summary import cautions, summarise_all

    from .output import print_summaries, summaries_json

    collection = Collection.open(plan.folder)
    found = summarise_all(collection, plan.reward, plan.alpha)
    careful = cautions(collection, plan.reward)
    if as_json:
        typer.echo(json.dumps(summaries_json(found) | {"cautions": careful}))
        return
    print_summaries(found)
    for sentence in careful:
        typer.echo(f"Note: {sentence}.")
