"""`draftpick compare BEFORE AFTER`: whether speed or acceptance fell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..commands.options import AsJson
from ..tabulated import Tabulated, tell


def compare(
    before: Annotated[
        Path, typer.Argument(help="A collection, a folder of specbench, or a report of check.")
    ],
    after: Annotated[Path, typer.Argument(help="The same, made later.")],
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two collections, benchmark runs or checks: whether speed or acceptance fell, with
    intervals. The exit code is 1 if something fell beyond doubt.

    \b
    Examples:
      draftpick compare rewards-monday rewards-friday
      draftpick compare before.json after.json
    """
    from router.specbench.compare import as_json as record
    from router.specbench.compare import compared, read_measured

    changes = compared(read_measured(before), read_measured(after), seed)
    rows = [
        [each.arm, each.figure, f"{each.before:.3g}", f"{each.after:.3g}",
         "-" if not math.isfinite(each.low) else f"{each.ratio:.3f}x "
         f"({each.low:.3f} to {each.high:.3f})"]
        for each in changes
    ]  # fmt: skip
    heads = ["arm", "figure", "before", "after", "after over before"]
    title = "What changed (intervals corrected for all rows, 95% together)"
    fallen = [each for each in changes if each.fell]
    said = [
        f"Fell: {each.figure} of {each.arm}, to {each.ratio:.3f} times what it was."
        for each in fallen
    ]
    said += [
        f"Not a fall: {each.figure} of {each.arm}, whose drafts were "
        f"{'longer' if each.figure == 'acceptance' else 'shorter'}."
        for each in changes
        if each.excused and each.figure != "drafted a pass"
    ]
    few = [each for each in changes if not math.isfinite(each.low)]
    if few:
        said.append(
            f"Note: {len(few)} rows have too few questions or windows for an interval, so that "
            "nothing is said of them."
        )
    if not fallen:
        said.append("Nothing fell beyond doubt.")
    tell(record(changes), [Tabulated(title, heads, rows)], said, as_json=as_json)
    if fallen:
        raise typer.Exit(1)
