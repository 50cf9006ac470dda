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


def cell(value: float | None, form: str) -> str:
    """A number in this format; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


@dataclass(frozen=True)
class Tabulated:
    """Cells in plain text, the best between double asterisks; the first of each row is its name.
    last_apart: as of `decoders.common.terminal.tables`."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    last_apart: bool = False


def for_terminal(several: Iterable[Tabulated], width: int) -> list[Table]:
    """For a terminal of `width` columns."""
    made = []
    for one in several:
        rows = [list(map(_marked, row)) for row in one.rows]
        made += tables(one.title, one.headings, rows, width, one.last_apart)
    return made


def _marked(cell: str) -> str:
    """Write a cell in rich's markup."""
    from rich.markup import escape

    best = cell.startswith("**")
    return f"[bold green]{escape(cell.strip('*'))}[/bold green]" if best else escape(cell)


def show_tables(several: Sequence[Tabulated]) -> None:
    """Print them for the width of standard output."""
    show(lambda width: for_terminal(several, width))


def tell(
    record: Any,
    several: Sequence[Tabulated],
    sentences: Iterable[str] = (),
    *,
    as_json: bool,
    err: bool = False,
) -> None:
    """Print what was found: the record as JSON in one line, or tables and then sentences, with
    `err` on standard error."""
    if as_json:
        typer.echo(json.dumps(record))
        return
    show_tables(several)
    for sentence in sentences:
        typer.echo(sentence, err=err)
