"""`draftpick theory`: how far to draft, and what it should gain, from acceptance and costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.costs.pass_costs import best_length, speculative

from ..commands import COMMANDS
from ..commands.options import AsJson
from ..tabulated import Tabulated, print_json, show_tables

if TYPE_CHECKING:
    from decoders.costs.measured import Costs


def theory(
    *,
    acceptance: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the drafted tokens that are accepted.")
    ],
    cost: Annotated[
        float | None, typer.Option(min=0, help="Cost of a drafted token; a target's pass costs 1.")
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="T,D", help="Parameter counts of target and drafter, as the cost."),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Read costs from the manifest.json of a collection."),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="With --costs: the arm.")] = None,
    longest: Annotated[int, typer.Option(min=1, max=64, help="Longest draft to consider.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Compute the expected speed-up of speculative decoding. The acceptance rate and the cost of a
    drafted token, in passes of the target, give the best draft length. Costs are given, or read
    from a collection.

    \b
    Examples:
      draftpick theory --acceptance 0.7 --cost 0.1
      draftpick theory --acceptance 0.7 --parameters 135e6,10e6
      draftpick theory --acceptance 0.6 --costs manifest.json --arm draft-general
    """
    if sum(given is not None for given in (cost, parameters, costs)) != 1:
        raise DraftpickError(
            "give the costs in one way: --cost, --parameters or --costs "
            "(for instance: draftpick theory --acceptance 0.7 --cost 0.1)"
        )
    if (arm is None) != (costs is None):
        raise DraftpickError("--costs FILE and --arm NAME go together")
    if cost is not None and not math.isfinite(cost):
        raise DraftpickError(f"--cost is a finite number, not {cost}")
    verify = [1.0] * (longest + 1)
    if parameters is not None:
        cost = share_of(parameters)
    elif costs is not None and arm is not None:
        from decoders.costs.measured import read_costs

        cost, verify = measured(read_costs(costs), arm, longest)
    assert cost is not None
    found = expected(acceptance, cost, verify)
    if as_json:
        print_json(found)
        return
    rows = []
    for row in found["over_k"]:
        cells = [f"{row['k']}", f"{row['tokens']:.2f}", f"{row['cost']:.2f}"]
        cells.append(f"{row['speedup']:.2f}x")
        best = row["k"] == found["best_k"]
        rows.append([f"**{cell}**" for cell in (*cells, "best")] if best else [*cells, ""])
    title = f"Acceptance {acceptance:.3g}, cost {cost:.3g}"
    heads = ["k", "tokens a round", "cost of a round", "speed-up", ""]
    show_tables([Tabulated(title, heads, rows)])


def expected(acceptance: float, cost: float, verify: list[float]) -> dict[str, Any]:
    """The best draft length, and what each length gives. verify: at k, the target's pass over k + 1
    tokens, in passes over one."""
    rows = []
    for k, passed in enumerate(verify):
        gain, spent = speculative(acceptance, cost, k, passed), k * cost + passed
        rows.append({"k": k, "tokens": gain * spent, "cost": spent, "speedup": gain})
    best = best_length(acceptance, cost, len(verify) - 1, verify)
    return {
        "acceptance": acceptance,
        "cost": cost,
        "best_k": best,
        "speedup": rows[best]["speedup"],
        "over_k": rows,
    }


def share_of(parameters: str) -> float:
    """The drafter's parameters over the target's. Raises DraftpickError for another text."""
    try:
        target, drafter = map(float, parameters.split(","))
        if 0 < target < float("inf") and 0 <= drafter < float("inf"):
            return drafter / target
    except ValueError:
        pass
    raise DraftpickError(
        "--parameters takes the target's count, then the drafter's, such as 135e6,20e6, not "
        f"{parameters!r}"
    )


def measured(costs: Costs, arm: str, longest: int) -> tuple[float, list[float]]:
    """A drafted token of the arm, and the target's pass at every width, in passes over one."""
    if arm not in costs.draft_s:
        raise NoSuchName("arm with a drafting cost", arm, list(costs.draft_s))
    alone = costs.verify(1)
    widths = [costs.verify(k + 1) / alone for k in range(longest + 1)]
    return costs.draft_s[arm] / alone, widths


COMMANDS["theory"] = theory
