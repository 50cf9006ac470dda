"""`draftpick headroom`: what there is to gain, before any training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.common.files import check_file
from decoders.common.terminal import progress, show

from ...engines.logs.options import TrafficOptions
from ...tabulated import for_terminal
from ..options import AsJson, names_in
from ..router_options import table_options
from ..with_records import with_records
from .views import as_dict, headroom_tables

FIGURES = (".png", ".svg", ".pdf")


@with_records(table=table_options, traffic=TrafficOptions)
def headroom(
    *,
    rewards: Annotated[
        Path | None, typer.Argument(metavar="REWARDS", help="What `draftpick collect` wrote.")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled; measured for "
            "endpoints; time-saved for logs, saved-passes where costs are not known."
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="Weight of similarity against cost in the reward, from 0 to 1."),
    ] = 0.5,
    table: TableOptions,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE", help="Only these features: a,b or repeated. Default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of folds and resamples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw what choosing earns: a .png, .svg or .pdf file.",
        ),
    ] = None,
    traffic: TrafficOptions,
    as_json: AsJson = False,
) -> None:
    """Report what a policy could gain over the best fixed arm, before any training; with
    --from-logs, what drafting would gain on an engine's traffic, by its tokenizer alone.

    \b
    Examples:
      draftpick headroom rewards
      draftpick headroom rewards --reward measured --out headroom.png
      draftpick headroom --from-logs log.jsonl --tokenizer DIR
      draftpick headroom --from-logs log.jsonl --tokenizer DIR --costs costs.json
    """
    if (rewards is None) == (not traffic.from_logs):
        raise DraftpickError("give either REWARDS or --from-logs FILE")
    if out is not None:
        check_figure(out)
    options = replace(table, reward=reward, alpha=alpha)
    if rewards is None:
        of_logs(traffic, options, names_in(by), seed, out, as_json)
    else:
        of_rewards(rewards, options, names_in(by), seed, out, as_json)


def of_rewards(
    folder: Path,
    options: TableOptions,
    by: Sequence[str],
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Of a collection. options: with the reward that was asked for, or None."""
    from collect import rewards as known
    from collect.store.collection import Collection
    from collect.summary import cautions
    from collect.table import read_rewards
    from policies.selection.headroom import headroom as found_in

    collection = Collection.open(folder)
    asked = known.get(options.reward or known.default(collection.manifest.costs))
    rows, left_out = read_rewards(collection, options)
    found = found_in(rows, by, asked.needs_measured, seed)
    if out is not None:
        from policies.selection.figure import draw_headroom

        draw_headroom(found, out)
    careful = cautions(collection, options.reward)
    if as_json:
        typer.echo(json.dumps(as_dict(found) | {"cautions": careful}))
        return
    show(partial(for_terminal, headroom_tables(found)))
    for sentence in found.advice:
        typer.echo(sentence)
    if str(left_out):
        typer.echo(f"Left out: {left_out}.")
    if found.left_out:
        typer.echo(f"Note: {found.left_out}.")
    for sentence in careful:
        typer.echo(f"Note: {sentence}.")
    if out is not None:
        typer.echo(f"Figure: {out}")


def of_logs(
    traffic: TrafficOptions,
    options: TableOptions,
    by: Sequence[str],
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Of logged traffic. options: as in `of_rewards`."""
    from ...engines.logs.replaying import replay_logs
    from ...engines.logs.report import notes, report, sentences, tabulated

    usual = TableOptions()
    for name in ("embedder", "temperatures", "repetitive"):
        if getattr(options, name) != getattr(usual, name):
            raise DraftpickError(f"--{name} is for REWARDS; leave it out with --from-logs")
    reward = options.reward if isinstance(options.reward, str) else None
    loads = sorted(set(options.at_once or ()))
    with progress("replaying", "arms") as on_done:
        source = replay_logs(traffic, options.arms, loads, on_done)
    made = report(source, reward, loads, by, seed)
    said, noted = sentences(made), notes(source)
    if out is not None:
        if made.found is None:
            raise DraftpickError(f"--out {out}: {made.why_not}; leave --out away")
        from policies.selection.figure import draw_headroom

        draw_headroom(made.found, out)
    if as_json:
        typer.echo(json.dumps(made.as_json(said) | {"notes": noted}))
        return
    show(partial(for_terminal, tabulated(made)))
    for sentence in said:
        typer.echo(sentence)
    for sentence in noted:
        typer.echo(f"Note: {sentence}.")
    if out is not None:
        typer.echo(f"Figure: {out}")


def check_figure(path: Path) -> None:
    """Raise DraftpickError for a kind of picture that is not drawn, and a place that takes none."""
    if path.suffix not in FIGURES:
        raise DraftpickError(f"--out takes a .png, .svg or .pdf file, not {path.name}")
    check_file(path, "--out")
