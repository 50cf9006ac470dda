"""What `draftpick collect` prints: what a sweep came to, and a collection's mean rewards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from collect.summary import render
from decoders.common.terminal import show

if TYPE_CHECKING:
    from collect.summary import Summary
    from collect.sweeps.run import SweepReport


def print_report(report: SweepReport, out: Path) -> None:
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


def summaries_json(summaries: list[Summary]) -> dict[str, Any]:
    """The first one, with those at other temperatures and loads inside."""
    first, *others = summaries
    record = first.as_json()
    for found in others:
        if found.at_once == 1:
            record.setdefault("at_temperature", {})[f"{found.temperature:g}"] = found.as_json()
        else:
            load = record.setdefault("at_once", {}).setdefault(str(found.at_once), {})
            load[f"{found.temperature:g}"] = found.as_json()
    return record


def print_summaries(summaries: list[Summary]) -> None:
    for found in summaries:
        show(partial(render, found))
        if found.repetitive:
            typer.echo(
                f"{found.repetitive:.0%} of the target's answers repeat themselves to the end."
            )
        for line in found.error_examples:
            typer.echo(f"error: {line}")
