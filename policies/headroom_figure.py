"""The picture of a table's headroom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.files import replacing

from .selection.headroom import Headroom
from .tracking.figures import POLICY, REFERENCE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = "#ff7f0e"


def draw(found: Headroom, path: Path) -> None:
    """Write the picture; its kind is by the name's ending. Raises OSError where the disk does."""
    with replacing(path) as stream:
        picture(found).savefig(stream, format=path.suffix.lstrip("."), dpi=150)


def picture(found: Headroom) -> Figure:
    """What each choice earns, with its interval, beside where the gap to the oracle lies."""
    from matplotlib.figure import Figure

    rows = max(len(found.choices), len(found.parts))
    figure = Figure(figsize=(11, 1.6 + 0.32 * rows), layout="constrained")
    left, right = figure.subplots(1, 2)
    choices = found.choices[::-1]
    means = [one.mean for one in choices]
    errors = [
        [max(one.mean - one.low, 0.0) for one in choices],
        [max(one.high - one.mean, 0.0) for one in choices],
    ]
    colors = [POLICY if one.gain.sure and one.kind != "oracle" else REFERENCE for one in choices]
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
