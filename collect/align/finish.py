"""A finished drafter's folder: its files, then the card with their hashes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoders.common.provenance import provenance
from decoders.common.secrets import masked_arguments
from decoders.zoo.catalogue import sha256_of

from .card import render
from .recipe import Recipe


def finish(folder: Path, name: str, card: dict[str, Any], save: Callable[[Path], None]) -> None:
    """What `save` writes into a folder, with its hashes in `card.json` and a README.md."""

    def fill(scratch: Path) -> None:
        save(scratch)
        files = {p.name: sha256_of(p) for p in sorted(scratch.iterdir())}
        whole = {**card, "files": files}
        (scratch / "card.json").write_text(json.dumps(whole, indent=1))
        (scratch / "README.md").write_text(render(name, whole))

    replace_folder(folder, fill)


def replace_folder(made: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder next to its place and rename it over what is there."""
    scratch = made.with_name(f".{made.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    fill(scratch)
    shutil.rmtree(made, ignore_errors=True)
    os.replace(scratch, made)


def facts(
    program: str, started: float, start: Path | None, recipe: Recipe | None
) -> dict[str, Any]:
    """What every drafter's card says of its run. started: by `time.time`."""
    return {
        "licence": "Apache-2.0",
        "start": None if start is None else start_name(start),
        "recipe": asdict(recipe) if recipe else None,
        "seconds": round(time.time() - started),
        "command": command(program),
        "provenance": {k: v for k, v in provenance().items() if k != "argv"},
    }


def start_name(start: Path) -> str:
    """What training went on from: a run's folder where `start` is the model in it."""
    return start.resolve().parent.name if start.name == "model" else start.name


def command(program: str) -> str:
    """How this process was called, each path cut to its name: a card travels, folders do not."""
    return " ".join(
        [program, *(Path(a).name if "/" in a else a for a in masked_arguments(sys.argv[1:]))]
    )
