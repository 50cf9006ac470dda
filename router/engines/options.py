"""Options that the commands about servers share, and the report that they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from decoders.common.files import write_atomically

Url = Annotated[str, typer.Argument(metavar="URL", help="The server's address, as far as /v1.")]
Model = Annotated[
    str | None, typer.Option(help="The model's name there. Default: the first that it lists.")
]
KeyVariable = Annotated[
    str | None,
    typer.Option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the server's key."
    ),
]
Questions = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Questions to ask. Default: those that ship.")
]
ReportFile = Annotated[
    Path | None, typer.Option(metavar="JSON", help="Also write the report here.")
]


def write_report(record: Any, out: Path | None, named: str = "Report") -> list[str]:
    """Write it as JSON, where there is a file for it; a sentence that says so."""
    if out is None:
        return []
    write_atomically(out, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return [f"{named}: {out}"]
