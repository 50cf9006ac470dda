"""`draftpick models`: what is known by name, and what of it lies on disk."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def models_json() -> list[dict[str, Any]]:
    """One object a model, with the fields of decoders' ModelCard."""
    from decoders.zoo import catalogue

    return [asdict(card) for card in catalogue()]


def models_table() -> Table:
    """The same for the terminal. acceptance: the mean over tasks, and the range."""
    from rich.table import Table

    table = Table(title="Models")
    for heading in ("model", "kind", "parameters", "size", "on disk", "licence", "source"):
        table.add_column(heading, justify="right" if heading in ("parameters", "size") else "left")
    table.add_column("acceptance", justify="right")
    table.add_column("note")
    for card in models_json():
        table.add_row(
            card["name"],
            card["kind"],
            millions(card["parameters"]),
            megabytes(card["size_bytes"]),
            "yes" if card["on_disk"] else "no, fetched on first use",
            card["licence"],
            card["source"],
            acceptance(card["acceptance"]),
            card["note"],
        )
    return table


def millions(parameters: int) -> str:
    return f"{parameters / 1e6:.1f}M" if parameters else "-"


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def acceptance(by_task: dict[str, float]) -> str:
    """`41% (30% to 52%)`, or a dash where nothing was measured."""
    if not by_task:
        return "-"
    values = list(by_task.values())
    mean = sum(values) / len(values)
    return f"{mean:.0%} ({min(values):.0%} to {max(values):.0%})"
