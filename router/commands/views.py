"""JSON that commands print."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, is_dataclass
from typing import Any

import typer


def print_json(value: Any) -> None:
    """Print it indented."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """What JSON can hold of a record, a dict or a list; a number that is none is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
