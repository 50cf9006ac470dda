"""What a terminal shows, and what is shown where there is none: tables that fit, and progress."""

from __future__ import annotations

import codecs
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ESCAPED = "draftpick-escaped"  # how characters are written that an encoding lacks
MOMENT_S = 2.0  # bars that are drawn for less are no progress to report


def tables(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    last_apart: bool = False,
) -> list[Table]:
    """A table for the terminal that breaks no figure over two lines, numbers to the right.

    headings: may be broken at their spaces.
    rows: cells in rich's markup; the first of each is its name.
    width: columns of the terminal. Where the table is wider it loses its frame, and where that is
        not enough it becomes several, each with the names.
    last_apart: a line above the last row.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[Text.from_markup(cell) for cell in row] for row in rows]
    columns = list(range(1, len(headings)))
    for heads in ([*headings], ["\n".join(heading.split()) for heading in headings]):
        widths = [
            max(len(line) for line in (*heading.split("\n"), *(row[at].plain for row in cells)))
            for at, heading in enumerate(heads)
        ]
        frame = _total(widths, columns, frame=True) <= width
        if frame:
            break
    heads = [_broken(heading, widths[at]) for at, heading in enumerate(headings)]
    parts = [columns] if frame else _filled(widths, columns, width)
    made = []
    for number, part in enumerate(parts):
        table = Table(
            title=title if not number else f"{title} (continued)",
            box=box.HEAVY_HEAD if frame else box.SIMPLE_HEAD,
            show_edge=frame,
            padding=(0, 1) if frame else (0, 1, 0, 0),
        )
        table.add_column(heads[0], no_wrap=True)
        for at in part:
            table.add_column(heads[at], justify="right", no_wrap=True)
        for index, row in enumerate(cells):
            if last_apart and index == len(cells) - 1:
                table.add_section()
            table.add_row(row[0], *(row[at] for at in part))
        made.append(table)
    return made


def texts(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    whole: int = 1,
    lines: bool = False,
) -> Table:
    """A table of words, in plain text, which are broken where they do not fit.

    whole: the leading columns that are not. lines: between the rows.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, show_lines=lines)
    for at, heading in enumerate(headings):
        table.add_column(heading, no_wrap=at < whole, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def show(made: Callable[[int], Sequence[Table]]) -> None:
    """Print the tables that `made` makes for the width of standard output: 80 columns, or the
    environment's COLUMNS, where that is no terminal."""
    from rich.console import Console

    console = Console()
    for table in made(console.width):
        console.print(table)


def _broken(heading: str, width: int) -> str:
    """Its lines, each with as many words as fit."""
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in heading.split("\n")
    )


def _total(widths: Sequence[int], part: Sequence[int], frame: bool) -> int:
    """Columns that the names and the columns of `part` take."""
    text = widths[0] + sum(widths[at] for at in part)
    return text + (3 * len(part) + 4 if frame else 2 * len(part) + 1)


def _filled(widths: Sequence[int], columns: Sequence[int], width: int) -> list[list[int]]:
    """The columns in as few parts as fit, without a frame."""
    parts: list[list[int]] = [[]]
    for at in columns:
        if parts[-1] and _total(widths, [*parts[-1], at], frame=False) > width:
            parts.append([])
        parts[-1].append(at)
    return parts


@dataclass
class Lines:
    """Progress in lines, for output that is no terminal: a log shows that the work goes on.

    console: where they are printed. doing: what is done, "collecting". unit: of what is counted.
    every_s, share: a line is printed once `every_s` seconds have passed since the last one, or
        after a third of that if `share` of all was done in between; the first and the last always.
    """

    console: Console
    doing: str
    unit: str
    every_s: float = 30.0
    share: float = 0.1
    clock: Callable[[], float] = time.monotonic
    _started: float | None = None
    _began: float = 0.0  # what was done at the start
    _told: tuple[float, float] = field(default=(0.0, 0.0))  # when, and what was done then

    def __call__(self, done: float, total: float, more: str = "") -> None:
        """done: of `total`, so far.
        more: figures to add.
        """
        now = self.clock()
        if self._started is None:
            self._started, self._began = now, done
        else:
            waited, gained = now - self._told[0], done - self._told[1]
            soon = gained >= self.share * total and waited >= self.every_s / 3
            if not soon and waited < self.every_s and done < total:
                return
        self._told = now, done
        passed, new = now - self._started, done - self._began
        parts = [f"{self.doing}: {done:.0f} of {total:.0f} {self.unit}", f"{passed:.0f} s passed"]
        if new > 0 and done < total:
            parts.append(f"about {passed * (total - done) / new:.0f} s left")
        # no markup, no wrapping: a line stays a line
        self.console.print(", ".join([*parts, *([more] if more else [])]), markup=False,
                           highlight=False, soft_wrap=True)  # fmt: skip


@contextmanager
def progress(
    doing: str, unit: str, console: Console | None = None
) -> Iterator[Callable[..., None]]:
    """A callback as that of `Lines`, while the context lasts: a bar on a terminal, lines elsewhere.

    console: default: standard error.
    """
    from rich import progress as parts
    from rich.console import Console

    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console, doing, unit)
        return
    bar = parts.Progress(
        parts.TextColumn("{task.description}"),
        parts.BarColumn(bar_width=10),  # room for the figures at 80 columns
        parts.MofNCompleteColumn(),
        parts.TextColumn(unit + "{task.fields[more]}"),
        parts.TimeRemainingColumn(elapsed_when_finished=False),
        parts.TextColumn("left"),
        console=console,
        # Few redraws: the bar's thread shares the cores with what is being timed.
        refresh_per_second=1,
        # Batches take tens of seconds: with rich's 30 s window there would be no estimate.
        speed_estimate_period=1800,
    )
    with bar:
        row = bar.add_task(doing, total=None, more="")

        def tick(done: float, total: float, more: str = "") -> None:
            bar.update(row, completed=done, total=total, more=f", {more}" if more else "")

        yield tick


def complete_streams() -> None:
    """Let this process have all three standard streams, and write any text to them.

    One that was closed when the process began leads nowhere from now on: without it a file that is
    opened later would take its number, and get what libraries write to it. What a stream's encoding
    has no bytes for is written as in JSON.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)  # its own, the lowest that is free
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


@contextmanager
def bars_as_lines() -> Iterator[None]:
    """Bars that libraries draw on standard error become lines where that is no terminal."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(cast(TextIO, _WithoutBars(sys.stderr))):
        yield


class _WithoutBars:
    """A stream that passes on all but bars, each drawn over itself after a carriage return. A bar
    of a moment is left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: Lines | None = None  # of the bar that is being drawn
        self._began, self._percent = 0.0, ""
        self._drawn = False  # whether a bar was written last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        bar = re.match(r"\r(?:(.*?)\W*:)?\s*(\d+)%", text)
        if bar is not None:
            if self._lines is None:
                from rich.console import Console

                self._lines = Lines(Console(file=self._stream), bar[1] or "progress", "%")
                self._began = time.monotonic()
            # a finished bar is drawn again
            if bar[2] != self._percent and time.monotonic() - self._began >= MOMENT_S:
                self._lines(float(bar[2]), 100)
            self._percent = bar[2]
        elif self._drawn and text == "\n":
            self._lines, self._percent = None, ""  # that bar is finished
        elif not text.startswith("\r"):
            self._stream.write(text)
        self._drawn = text.startswith("\r")
        return len(text)
