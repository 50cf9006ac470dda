"""What `draftpick headroom` found, as JSON and as tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...tabulated import Tabulated

if TYPE_CHECKING:
    from policies.selection.headroom import Headroom


def as_dict(found: Headroom) -> dict[str, Any]:
    made = asdict(found)
    for choice, one in zip(made["choices"], found.choices, strict=True):
        choice["gain"] = one.gain.as_json()
    return made


def headroom_tables(found: Headroom) -> list[Tabulated]:
    """What each choice earns, where the gap lies, the arms."""
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
