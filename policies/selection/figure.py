"""The picture of headroom, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.files import replacing

from .advice import Headroom

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY, REFERENCE, GAP = "#1f77b4", "#b0b0b0", "#ff7f0e"


def _errors(means: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    """How far bars reach below and above. A percentile interval may lie wholly to one side of the
    mean of a very skewed row."""
    rows = list(zip(means, intervals, strict=True))
    below = [max(mean - low, 0.0) for mean, (low, _) in rows]
    return [below, [max(high - mean, 0.0) for mean, (_, high) in rows]]


def draw_headroom(found: Headroom, path: Path) -> None:
    """Write the picture; its kind is by the name's ending. Raises OSError where the disk does."""
    with replacing(path) as stream:
        headroom_figure(found).savefig(stream, format=path.suffix.lstrip("."), dpi=150)


def headroom_figure(found: Headroom) -> Figure:
    """Draw what each choice earns, with its interval, next to where the gap to the oracle lies."""
    from matplotlib.figure import Figure

    rows = max(len(found.choices), len(found.parts))
    figure = Figure(figsize=(11, 1.6 + 0.32 * rows), layout="constrained")
    left, right = figure.subplots(1, 2)
    choices = found.choices[::-1]
    means = [one.mean for one in choices]
    errors = _errors(means, [(one.low, one.high) for one in choices])
    colors = [
        POLICY if one.gain.above_zero and one.kind != "oracle" else REFERENCE for one in choices
    ]
    left.barh(range(len(choices)), means, xerr=errors, color=colors, capsize=3)
    names = [f"best fixed ({found.best_fixed})" if o.kind == "fixed" else o.name for o in choices]
    left.set_yticks(range(len(choices)), labels=names)
    left.set(xlabel=f"mean reward ({found.reward})", title="What each choice earns, 95% intervals")
    parts = found.parts[::-1]
    fixed = [part.fixed for part in parts]
    gaps = [part.oracle - part.fixed for part in parts]
    right.barh(range(len(parts)), fixed, color=REFERENCE, label="best fixed arm")
    right.barh(range(len(parts)), gaps, left=fixed, color=GAP, label="gap to the oracle")
    where = [p.name if p.by == "task" else f"{p.by} {p.name}" for p in parts]
    right.set_yticks(range(len(parts)), labels=where)
    right.set(xlabel=f"mean reward ({found.reward})", title="Where the gap lies")
    right.legend(fontsize=8, loc="lower right")
    return figure
