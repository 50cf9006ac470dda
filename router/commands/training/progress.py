"""Progress of `draftpick train --seeds` and `--alphas`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Runs done, on standard error: a bar on a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from decoders.common.terminal import Lines

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console, "training", "runs")
        return
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        row = bar.add_task("training", total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)
