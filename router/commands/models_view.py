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


def models_tables(width: int) -> list[Table]:
    """The same for a terminal of `width` columns: figures, then words. Acceptance is shown as the
    mean over tasks, and the range."""
    from rich.table import Table

    from decoders.common.terminal import tables

    cards = models_json()
    figures = [
        [
            card["name"],
            millions(card["parameters"]),
            megabytes(card["size_bytes"]),
            "yes" if card["on_disk"] else "no",
            acceptance(card["acceptance"]),
        ]
        for card in cards
    ]
    headings = ["model", "parameters", "size", "on disk", "acceptance"]
    title = "Models (one that is not on disk is fetched on first use)"
    words = Table(title="What they are")
    words.add_column("model", no_wrap=True)
    for field in ("kind", "licence", "source", "note"):
        words.add_column(field, overflow="fold")
    for card in cards:
        words.add_row(*(card[field] for field in ("name", "kind", "licence", "source", "note")))
    return [*tables(title, headings, figures, width), words]


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
