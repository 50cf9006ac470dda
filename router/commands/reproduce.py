"""`draftpick reproduce`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.listing import Listing
from router.commands.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

    from ..reproduce.records import Reproduction

REPRODUCE_HELP = """Do the experiments of the paper again, on the models that ship.

Huang et al., Context-Aware Assistant Selection: a policy learns offline which drafter suits which
query. Each of its tables and figures has a name here; without one, they are listed with the minutes
that each takes on two cores. A reproduction collects rewards, trains the paper's REINFORCE with
five seeds, and measures every drafter and every policy, greedy and dynamic, in one interleaved run.
It ends with a page that has our figures beside the paper's, and says which of its claims hold here.
speccascade and bild are tables of Narasimhan et al. and Kim et al., without a policy.

Everything is written under --out. Stopped at any moment (Ctrl-C, a power cut), the same command
goes on where it was.

\b
  draftpick reproduce                                list them
  draftpick reproduce table-1                        two specialists and a policy
  draftpick reproduce table-6 --seeds 3 --test 4     quicker: fewer seeds and questions
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application; it raises DraftpickError for the user's mistakes."""
    app.command("reproduce", help=REPRODUCE_HELP, cls=Listing)(reproduce)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one; without, list them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: runs/reproduce/NAME.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of every policy.")] = 5,
    train: Annotated[
        int | None, typer.Option(help="Training queries a task, at most. Default: its own.")
    ] = None,
    test: Annotated[
        int | None, typer.Option(help="Questions a task, at most. Default: its own.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens. Default: its own.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or auto. The figures in the docs are of a CPU.")
    ] = "cpu",
    as_json: AsJson = False,
) -> None:
    from decoders.common.terminal import show

    from ..reproduce.registry import reproduction
    from ..reproduce.run import Scale, write

    if name is None:
        show(lambda width: listing(width))
        print("run one: draftpick reproduce table-1", file=sys.stderr)
        return
    what = reproduction(name)
    folder = out or Path("runs") / "reproduce" / name
    told = write(what, folder, Scale(seeds, train, test, max_new_tokens, device))
    typer.echo(json.dumps(told) if as_json else (folder / f"{name}.md").read_text(encoding="utf-8"))
    print(f"written to {folder}", file=sys.stderr)


def listing(width: int) -> list[Table]:
    """A row for each reproduction."""
    from decoders.common.terminal import tables

    from ..reproduce.registry import REPRODUCTIONS

    made = [make() for make in REPRODUCTIONS.values()]
    rows = [
        [what.name, f"{what.minutes:g}", _models(what), what.title.partition(": ")[2]]
        for what in made
    ]
    return tables("Reproductions", ["name", "minutes", "models", "what"], rows, width)


def _models(what: Reproduction) -> str:
    family = what.models.family
    return what.models.target if family is None else family.name
