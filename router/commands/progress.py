"""The sweep's progress: a bar on a terminal, lines now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from collect.sweeps.run import SweepProgress
from decoders.common.terminal import Lines


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    """A callback for `sweep`, drawn while the context lasts: queries done, errors, time left."""
    if not console.is_terminal:
        lines = Lines(console, "collecting", "queries")
        yield lambda now: lines(now.done, now.total, f"{now.errors} errors")
        return
    bar = Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("queries, {task.fields[errors]} errors,"),
        TimeElapsedColumn(),
        TextColumn("passed,"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("left"),
        console=console,
        # Batches take tens of seconds: with rich's 30 s window there would be no estimate.
        speed_estimate_period=1800,
    )
    with bar:
        task = bar.add_task("collecting", total=None, errors=0)

        def show(progress: SweepProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, errors=progress.errors)

        yield show
