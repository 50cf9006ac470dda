"""Results of a command, as JSON or as tables and sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import typer

from decoders.common.terminal import show, tables

if TYPE_CHECKING:
    from rich.table import Table


def print_json(value: Any) -> None:
    """Print it indented."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Make a record, a dict or a list ready for JSON; a number that is none is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def tell(
    record: Any, several: Iterable[Tabulated], sentences: Iterable[str], *, as_json: bool
) -> None:
    """Print what was found: the record as JSON in one line, or tables and then sentences."""
    if as_json:
        typer.echo(json.dumps(record))
        return
    listed = list(several)
    show(lambda width: for_terminal(listed, width))
    for sentence in sentences:
        typer.echo(sentence)
