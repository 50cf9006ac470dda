"""`draftpick compare BEFORE [AFTER]`: whether speed or acceptance fell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError

from ..commands.options import AsJson
from ..tabulated import Tabulated, tell


def compare(
    before: Annotated[
        Path,
        typer.Argument(
            help="A collection, a folder of specbench, a report of check, or a log of serve."
        ),
    ],
    after: Annotated[
        Path | None,
        typer.Argument(
            help="The same, made later. Without it a log is compared before and since its arms or "
            "its policy changed last."
        ),
    ] = None,
    show_words: Annotated[
        bool,
        typer.Option(
            "--show-words",
            help="Call a log's kinds of work by their words, which stand in what users wrote.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two collections, benchmark runs, checks or logs: whether speed or acceptance fell,
    with intervals. Logs are compared by kinds of work too, where they keep texts. The exit code is
    1 if something fell beyond doubt.

    \b
    Examples:
      draftpick compare rewards-monday rewards-friday
      draftpick compare before.json after.json
      draftpick compare log
    """
    from router.specbench.compare import as_json as record
    from router.specbench.compare import compared, read_measured
    from router.specbench.compare_logs import is_log, measured, read_sides

    if is_log(before) and (after is None or is_log(after)):
        sides = measured(*read_sides(before, after), show_words)
    elif after is None:
        raise DraftpickError(f"name what {before} is to be compared with")
    else:
        sides = read_measured(before), read_measured(after)
    changes = compared(*sides, seed)
    rows = [
        [each.arm, each.figure, f"{each.before:.3g}", f"{each.after:.3g}",
         "-" if not math.isfinite(each.low) else f"{each.ratio:.3f}x "
         f"({each.low:.3f} to {each.high:.3f})"]
        for each in changes
    ]  # fmt: skip
    heads = ["of", "figure", "before", "after", "after over before"]
    title = "What changed (intervals corrected for all rows, 95% together)"
    fallen = [each for each in changes if each.fell]
    said = [
        f"Fell: {each.figure} of {each.arm}, to {each.ratio:.3f} times what it was."
        for each in fallen
    ]
    said += [
        f"Rose: {each.figure} of {each.arm}, to {each.ratio:.3f} times what it was."
        for each in changes
        if each.low > 1 and each.figure != "drafted a pass"
    ]
    said += [
        f"Not a fall: {each.figure} of {each.arm}, whose drafts were "
        f"{'longer' if each.figure == 'acceptance' else 'shorter'}."
        for each in changes
        if each.excused and each.figure != "drafted a pass"
    ]
    few = [each for each in changes if not math.isfinite(each.low) and each.before]
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
