"""The experiments of a paper, repeated on the models that ship: `make reproduce TABLE=table-1`.

Huang et al., Context-Aware Assistant Selection: a policy learns offline which drafter suits which
query. Each of its tables and figures has a name here; without a name, they are listed with the
minutes that each takes on two cores. A reproduction collects rewards, trains the paper's REINFORCE
with five seeds, and measures every drafter and every policy, greedy and dynamic, in one interleaved
run. It ends with a page that has our figures beside the paper's, and says which of its claims hold
here. speccascade and bild are tables of Narasimhan et al. and Kim et al., without a policy.

Everything is written under --out. Stopped at any moment (Ctrl-C, a power cut), the same command
goes on where it was.

    make reproduce                                             list them
    make reproduce TABLE=table-1                               two specialists and a policy
    make reproduce TABLE=table-6 ARGS="--seeds 3 --test 4"     fewer seeds and questions
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError

from .records import Reproduction

if TYPE_CHECKING:
    from rich.table import Table


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("name", nargs="?", help="which one; without it, list them")
    add("--out", type=Path, metavar="DIR", help="default: runs/reproduce/NAME")
    add("--seeds", type=int, default=5, help="trainings of every policy (default: 5)")
    add("--train", type=int, help="training queries a task, at most (default: its own)")
    add("--test", type=int, help="questions a task, at most (default: its own)")
    add("--max-new-tokens", type=int, help="longest answer, in tokens (default: its own)")
    add("--device", default="cpu", help="cpu, cuda or auto; the docs' figures are of a CPU")
    add("--json", action="store_true", help="print JSON")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one and return the exit code; 2 is a mistake of the user, told in one sentence."""
    from decoders.common.terminal import show

    from .registry import reproduction
    from .run import Scale, write

    options = parser().parse_args(arguments)
    if options.name is None:
        show(listing)
        print("run one: make reproduce TABLE=table-1", file=sys.stderr)
        return 0
    folder = options.out or Path("runs") / "reproduce" / options.name
    try:
        what = reproduction(options.name)
        scale = Scale(
            options.seeds, options.train, options.test, options.max_new_tokens, options.device
        )
        found = write(what, folder, scale)
    except DraftpickError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    page = folder / f"{options.name}.md"
    print(json.dumps(found) if options.json else page.read_text(encoding="utf-8"))
    print(f"written to {folder}", file=sys.stderr)
    return 0


def listing(width: int) -> list[Table]:
    """A row for each reproduction."""
    from decoders.common.terminal import tables

    from .registry import REPRODUCTIONS

    made = [make() for make in REPRODUCTIONS.values()]
    rows = [
        [what.name, f"{what.minutes:g}", _models(what), what.title.partition(": ")[2]]
        for what in made
    ]
    return tables("Reproductions", ["name", "minutes", "models", "what"], rows, width)


def _models(what: Reproduction) -> str:
    family = what.models.family
    return what.models.target if family is None else family.name


if __name__ == "__main__":
    sys.exit(main())
