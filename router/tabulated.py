"""A table before it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decoders.common.terminal import tables

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Tabulated:
    """Cells in plain text; the first of each row is its name. last_apart: as of
    `decoders.common.terminal.tables`."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    last_apart: bool = False

    def for_terminal(self, width: int) -> list[Table]:
        """For so many columns."""
        from rich.markup import escape

        rows = [list(map(escape, row)) for row in self.rows]
        return tables(self.title, self.headings, rows, width, self.last_apart)


def for_terminal(several: Iterable[Tabulated], width: int) -> list[Table]:
    """For a terminal of `width` columns."""
    return [table for one in several for table in one.for_terminal(width)]
