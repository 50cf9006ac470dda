"""`draftpick collect`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from decoders.common.errors import DraftpickError
from decoders.common.terminal import show

from ..options import AsJson
from .plan import CollectOptions, plan

if TYPE_CHECKING:
    from collect.summary import Summary
    from collect.sweeps.batch import SweepOptions
    from collect.sweeps.run import SweepReport

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
    how = plan(options)
    if how is not None and options.out is not None:
        _collect(options, options.out, how, as_json)
    elif options.summary is not None:
        _summarise(options.summary, options.reward, options.alpha, as_json)


def _collect(asked: CollectOptions, out: Path, how: SweepOptions, as_json: bool) -> None:
    from .run import run

    try:
        report = run(asked, out, how)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {out} is whole; run the same command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps({"out": str(out), **asdict(report)}))
        return
    _print_report(report, out)
    if report.rows and report.errors == report.rows:
        raise DraftpickError(
            f"every row collected in this run is an error; see the `error` column "
            f"of {out}/outcomes, fix the cause, and collect into another --out"
        )


def _summarise(folder: Path, reward: str | None, alpha: float, as_json: bool) -> None:
    from collect.store.collection import Collection
    from collect.summary import cautions, summarise_all

    collection = Collection.open(folder)
    careful = list[str]()
    found = summarise_all(collection, reward, alpha, careful.append)
    careful += cautions(collection, reward)
    if as_json:
        typer.echo(json.dumps(_summaries_json(found) | {"cautions": careful}))
        return
    _print_summaries(found)
    for sentence in careful:
        typer.echo(f"Note: {sentence}.")


def _print_report(report: SweepReport, out: Path) -> None:
    before = f", {report.already} were there before" if report.already else ""
    typer.echo(
        f"{report.collected} queries collected in {report.seconds:.0f} s{before}; "
        f"{report.errors} of {report.rows} new rows are errors."
    )
    if report.embedded:
        each_ms = 1000 * report.embed_s / report.embedded
        typer.echo(
            f"{report.embedded} queries embedded in {report.embed_s:.1f} s, {each_ms:.1f} ms each."
        )
    if report.costs_of is not None:
        typer.echo(
            f"Costs stay those of the first run, by {report.costs_of}; for this run's, collect "
            "into another --out."
        )
    for arm, many in report.uncounted.items():
        typer.echo(
            f"The server of arm {arm} did not count the tokens of {many} answers, so they have no "
            "measured speed; name a `tokenizer` for the arm and collect into another folder."
        )
    typer.echo(f"Look:  draftpick collect --summary {out}")
    typer.echo(f"Train: draftpick train --rewards {out}")


def _summaries_json(summaries: list[Summary]) -> dict[str, Any]:
    """The first one, with those at other temperatures and loads inside."""
    first, *others = summaries
    record = asdict(first)
    for found in others:
        load, temperature = found.answers_at_once, f"{found.temperature:g}"
        if load == 1:
            record.setdefault("at_temperature", {})[temperature] = asdict(found)
        else:
            at_load = record.setdefault("at_once", {}).setdefault(str(load), {})
            at_load[temperature] = asdict(found)
    return record


def _print_summaries(summaries: list[Summary]) -> None:
    from collect.summary import render

    for found in summaries:
        show(partial(render, found))
        if found.repetitive_share:
            share = f"{found.repetitive_share:.0%}"
            typer.echo(f"{share} of the target's answers repeat themselves to the end.")
        for line in found.error_examples:
            typer.echo(f"error: {line}")
