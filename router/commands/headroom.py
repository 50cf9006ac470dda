"""`draftpick headroom`: what there is to gain, before any training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.common.files import check_file
from decoders.common.plugins import watched

from ..tabulated import Tabulated, tell
from .options import AsJson, TableRecord, names_in

if TYPE_CHECKING:
    from policies.selection.advice import Headroom

FIGURES = (".png", ".svg", ".pdf")


class Source(Protocol):
    """Another source than a collection: a dataclass whose fields are further options."""

    @property
    def given(self) -> bool:
        """Whether the user names it."""

    def report(self, asked: HeadroomOptions) -> None:
        """Print what there is to gain. Raises DraftpickError for an option that is not for it."""


SOURCES: dict[str, type[Source]] = watched("source of headroom", {})
"""Its option, as a sentence names it -> the source."""


@dataclass(frozen=True, kw_only=True)
class HeadroomOptions:
    """The options of `draftpick headroom`."""

    rewards: Annotated[
        Path | None, typer.Argument(metavar="REWARDS", help="What `draftpick collect` wrote.")
    ] = None
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward to maximise: {collect.REWARDS}. Default: modelled; measured for "
            "endpoints; time-saved for logs, saved-passes where costs are not known."
        ),
    ] = None
    alpha: Annotated[
        float, typer.Option(help="Weight of similarity against cost in the reward, from 0 to 1.")
    ] = 0.5
    table: TableRecord
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE", help="Only these features: a,b or repeated. Default: all."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Random seed of folds and resamples.")] = 0
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also draw what choosing earns: a .png, .svg or .pdf file."
        ),
    ] = None
    sources: Annotated[dict[str, Source], SOURCES]
    as_json: AsJson = False

    def as_table(self) -> TableOptions:
        """The rows to read, with the reward that was asked for, or None."""
        return replace(self.table, reward=self.reward, alpha=self.alpha)


def headroom(asked: HeadroomOptions) -> None:
    """Report what a policy could gain over the best fixed arm, before any training; with
    --from-logs, what drafting would gain on an engine's traffic, by its tokenizer alone.

    \b
    Examples:
      draftpick headroom rewards
      draftpick headroom rewards --reward measured --out headroom.png
      draftpick headroom --from-logs log.jsonl --tokenizer DIR
      draftpick headroom --from-logs log.jsonl --tokenizer DIR --costs costs.json
    """
    given = [source for source in asked.sources.values() if source.given]
    if len(given) + (asked.rewards is not None) != 1:
        raise DraftpickError(f"give either {' or '.join(['REWARDS', *SOURCES])}")
    if asked.out is not None:
        check_figure(asked.out)
    if asked.rewards is None:
        given[0].report(asked)
    else:
        _of_rewards(asked.rewards, asked)


def _of_rewards(folder: Path, asked: HeadroomOptions) -> None:
    from collect.store.collection import Collection
    from collect.summary import cautions
    from collect.table import read_rewards
    from policies.selection.headroom import headroom as found_in

    table = asked.as_table()
    collection = Collection.open(folder)
    rows, left_out = read_rewards(collection, table)
    found = found_in(rows, names_in(asked.by), asked.seed)
    if asked.out is not None:
        from policies.selection.figure import draw_headroom

        draw_headroom(found, asked.out)
    careful = [*cautions(collection, table.reward), *left_out.cautions]
    said = [*found.advice, *([f"Left out: {left_out}."] if str(left_out) else [])]
    said += [f"Note: {each}." for each in (found.left_out, *careful) if each]
    if asked.out is not None:
        said.append(f"Figure: {asked.out}")
    record = as_dict(found) | {"cautions": careful}
    tell(record, headroom_tables(found), said, as_json=asked.as_json)


def check_figure(path: Path) -> None:
    """Raise DraftpickError for a kind of picture that is not drawn, and a place that takes none."""
    if path.suffix not in FIGURES:
        raise DraftpickError(f"--out takes a .png, .svg or .pdf file, not {path.name}")
    check_file(path, "--out")


def as_dict(found: Headroom) -> dict[str, Any]:
    made = asdict(found)
    for choice, one in zip(made["choices"], found.choices, strict=True):
        choice["gain"] = one.gain.as_json()
    return made


def headroom_tables(found: Headroom) -> list[Tabulated]:
    """Tables of what each choice earns, where the gap lies, and the arms."""
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
    made = [Tabulated(title, heads, choices, last_apart=True)]
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
    made.append(Tabulated("Where the gap lies", heads, parts))
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
    return [*made, Tabulated("Which arms win", heads, arms)]


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
