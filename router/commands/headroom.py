"""`draftpick headroom`: what there is to gain, before any training."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collect.table_options import TableOptions
from decoders.common.terminal import show
from router.commands.listing import Listing
from router.commands.options import AsJson, names_in

from .router_options import table_options
from .with_records import with_records

if TYPE_CHECKING:
    from rich.table import Table

    from policies.selection.headroom import Headroom

HEADROOM_HELP = """Report what a policy could gain over the best fixed arm. It takes seconds, needs
no training, and ends in a recommendation.

\b
Examples:
  draftpick headroom rewards
  draftpick headroom rewards --reward measured --out headroom.png
  draftpick headroom rewards --by temperature --json
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command("headroom", help=HEADROOM_HELP, cls=Listing)(headroom)


@with_records(table=table_options)
def headroom(
    *,
    rewards: Annotated[
        Path, typer.Argument(metavar="REWARDS", help="What `draftpick collect --out` wrote.")
    ],
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled, or measured for "
            "endpoints."
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
        typer.Option(metavar="FIGURE", help="Also draw it: a .png, .svg or .pdf file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from collect import rewards as known
    from collect.cautions import cautions
    from collect.store.collection import Collection
    from collect.table import read_rewards
    from policies.selection.headroom import headroom as found_in

    if out is not None:
        check_figure(out)
    options = replace(table, reward=reward, alpha=alpha)
    collection = Collection.open(rewards)
    asked = known.get(reward or known.default(collection.manifest.costs))
    rows, left_out = read_rewards(collection, options)
    found = found_in(rows, names_in(by), asked.needs_measured, seed)
    if out is not None:
        from policies.tracking.figures import draw_headroom

        draw_headroom(found, out)
    careful = cautions(collection, reward)
    if as_json:
        typer.echo(json.dumps(as_dict(found) | {"cautions": careful}))
        return
    show(partial(headroom_tables, found))
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


def check_figure(path: Path) -> None:
    """Raise DraftpickError for a kind of picture that is not drawn, and a place that takes none."""
    from decoders.common.errors import DraftpickError
    from decoders.common.files import check_file

    if path.suffix not in (".png", ".svg", ".pdf"):
        raise DraftpickError(f"--out takes a .png, .svg or .pdf file, not {path.name}")
    check_file(path, "--out")


def as_dict(found: Headroom) -> dict[str, Any]:
    """JSON-ready."""
    made = asdict(found)
    for choice, one in zip(made["choices"], found.choices, strict=True):
        choice["gain"] = one.gain.as_json()
    return made


def headroom_tables(found: Headroom, width: int) -> list[Table]:
    """For a terminal of `width` columns: what each choice earns, where the gap lies, the arms."""
    from decoders.common.terminal import tables

    choices = []
    for one in found.choices:
        name = f"best fixed ({found.best_fixed})" if one.kind == "fixed" else one.name
        name += " (optimistic)" if one.kind == "oracle" and found.optimistic else ""
        cells = [f"{one.mean:.4f}", f"{one.low:.4f} .. {one.high:.4f}"]
        gain = "" if one.percent is None else f"{one.percent:.1f}%"
        above = "yes" if one.gain.above_zero else "no"
        chosen = [gain, "" if one.kind == "oracle" else above, _share(one.gap_share)]
        choices.append([name, *cells, *([""] * 3 if one.kind == "fixed" else chosen)])
    title = f"Mean reward ({found.reward}) of {found.queries} queries, by how the arm is chosen"
    heads = ["choice", "reward", "95% interval", "gain", "above 0", "of the gap"]
    made = tables(title, heads, choices, width, last_apart=True)
    parts = [
        [
            part.name if part.by == "task" else f"{part.by} {part.name}",
            str(part.rows),
            part.arm,
            *(f"{mean:.4f}" for mean in (part.arm_mean, part.fixed, part.oracle)),
            _share(part.gap_share),
        ]
        for part in found.parts
    ]
    heads = ["where", "rows", "best arm", "its mean", "best fixed", "oracle", "of the gap"]
    made += tables("Where the gap lies", heads, parts, width)
    arms = [
        [
            one.arm,
            f"{one.mean:.4f}",
            f"{one.wins:.1%}",
            "" if one.lead is None else f"{one.lead:.4f}",
        ]
        for one in found.arms
    ]
    heads = ["arm", "reward", "best on", "its lead there"]
    return made + tables("Which arms win", heads, arms, width)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
