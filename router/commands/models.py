"""`draftpick models`: models known by name, and the cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.terminal import show, tables, texts

from ..tabulated import print_json
from .arms import describe
from .options import AsJson

if TYPE_CHECKING:
    from rich.table import Table


def models(
    clear: Annotated[
        list[str] | None,
        typer.Option(help="Remove this entry of the cache from the disk; may be given repeatedly."),
    ] = None,
    fetch: Annotated[
        list[str] | None,
        typer.Option(help="Fetch this model into the cache; may be given repeatedly."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models known by name, and whether they are on disk. The table gives each model's
    size, licence and acceptance rate. A second one lists what the cache holds.

    \b
    Examples:
      draftpick models
      draftpick models --fetch qwen2.5-coder-0.5b-instruct
      draftpick models --clear compiled
    """
    if clear or fetch:
        from decoders.zoo import clear as remove

        for name in clear or ():
            typer.echo(f"removed {name}, {megabytes(remove(name).size_bytes)}")
        for name in fetch or ():
            from decoders.models import targets

            typer.echo(targets.fetch_known(name))
    elif as_json:
        print_json(models_json())
    else:
        show(models_tables)


def models_json() -> list[dict[str, Any]]:
    """One object a model, with the fields of decoders' ModelCard."""
    from decoders.zoo import catalogue

    return [asdict(card) for card in catalogue()]


def models_tables(width: int) -> list[Table]:
    """Figures, then words; acceptance as the mean over tasks, and the range."""
    from decoders.zoo import cached

    cards = models_json()
    figures = [
        [
            card["name"],
            millions(card["parameters"]),
            megabytes(card["size_bytes"]),
            describe(card["on_disk"]),
            acceptance(card["acceptance"]),
        ]
        for card in cards
    ]
    headings = ["model", "parameters", "size", "on disk", "acceptance"]
    title = "Models (one that is not on disk is fetched on first use)"
    words = ["model", "kind", "licence", "source", "note"]
    rows = [[card["name"], *(card[field] for field in words[1:])] for card in cards]
    listed = [*tables(title, headings, figures, width), texts("What they are", words, rows)]
    rows = [[entry.name, megabytes(entry.size_bytes), entry.what] for entry in cached()]
    if rows:
        title = "In the cache (--clear removes an entry)"
        listed.append(texts(title, ["entry", "size", "what it is"], rows, whole=2))
    return listed


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
