"""How the scripts beside this one end: figures, what was wrong, and an exit status that says it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoders.common.files import write_atomically


def end(figures: Mapping[str, Any], wrong: Sequence[str], out: Path | None) -> None:
    """Print the figures, and what was wrong; raises SystemExit(1) where anything was.

    out: a JSON file for both, None for none.
    """
    for name, value in figures.items():
        print(f"{name}: {value}")
    if out is not None:
        write_atomically(out, json.dumps({"figures": figures, "wrong": list(wrong)}, indent=1))
    for each in wrong[:20]:
        print(f"WRONG: {each}")
    if wrong:
        print(f"{len(wrong)} wrong")
        raise SystemExit(1)
    print("nothing wrong")
