"""What a terminal shows, and what is shown where there is none: tables that fit, and progress."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE = 200  # columns of what is no terminal, and so has no width of its own


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


def show(made: Callable[[int], Sequence[Table]]) -> None:
    """Print the tables that `made` makes for the width of standard output.

    A pipe or a file has no width of its own, and is given room instead of cut columns.
    """
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE)
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
    every_s, share: a line comes once so many seconds have passed since the last one, or sooner,
        though not within a third of that, where such a share of all is done since; the first and
        the last always.
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
        said = [f"{self.doing}: {done:.0f} of {total:.0f} {self.unit}", f"{passed:.0f} s passed"]
        if new > 0 and done < total:
            said.append(f"about {passed * (total - done) / new:.0f} s left")
        # no markup, no wrapping: a line stays a line
        self.console.print(", ".join([*said, *([more] if more else [])]), markup=False,
                           highlight=False, soft_wrap=True)  # fmt: skip
