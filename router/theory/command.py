"""`draftpick theory`: how far to draft, and what it should gain, from acceptance and costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_file
from decoders.common.terminal import show
from decoders.options import EngineOptions

from ..commands.options import AsJson, engine_options
from ..commands.with_records import with_records

if TYPE_CHECKING:
    from rich.table import Table


@with_records(options=engine_options)
def theory(
    *,
    acceptance: Annotated[
        str | None, typer.Option(metavar="A,B", help="Acceptance rates of the drafters, 0 to 1.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Costs of their tokens; a target's pass costs 1."),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="T,A,B", help="Parameter counts of target and drafters, as costs."),
    ] = None,
    inner_acceptance: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of the second drafter's tokens that the first accepts."
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Read costs from the manifest.json of a collection."),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="With --costs: the arm.")] = None,
    measure: Annotated[
        str | None, typer.Option(metavar="ARM", help="Measure this arm's costs on this machine.")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --measure: also measure the acceptance rate, on these queries.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With --queries: queries per task.")] = 2,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="With --queries: longest answer, in tokens.")
    ] = 64,
    longest: Annotated[int, typer.Option(min=1, max=64, help="Longest draft to consider.")] = 16,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the curves.")] = None,
    table1: Annotated[
        bool,
        typer.Option("--table1", help="Compute table 1 of Cascade Speculative Drafting instead."),
    ] = False,
    as_json: AsJson = False,
    options: EngineOptions,
) -> None:
    """Compute the expected speed-up of speculative decoding. The acceptance rate and the cost of a
    drafted token, in passes of the target, give the best draft length. Costs are given, read from a
    collection, or measured.

    \b
    Examples:
      draftpick theory --acceptance 0.7 --cost 0.1
      draftpick theory --acceptance 0.8,0.65 --cost 0.05,0.01
      draftpick theory --acceptance 0.7 --parameters 135e6,10e6 --out theory.png
      draftpick theory --acceptance 0.6 --costs manifest.json --arm draft-general
      draftpick theory --measure draft-general --queries questions.jsonl
      draftpick theory --table1
    """
    from collect.queries import first_per_task, read_queries

    from . import inputs
    from .report import report, table_1, table_1_json, tables_of

    if table1:
        if any(given is not None for given in (acceptance, cost, parameters, costs, measure)):
            raise DraftpickError("--table1 takes no figures of yours; leave the others out")
        _show(table_1, table_1_json(), as_json)
        return
    if sum(given is not None for given in (cost, parameters, costs, measure)) != 1:
        raise DraftpickError(
            "give the costs in one way: --cost, --parameters, --costs or --measure "
            "(for instance: draftpick theory --acceptance 0.7 --cost 0.1)"
        )
    if (arm is None) != (costs is None):
        raise DraftpickError("--costs FILE and --arm NAME go together")
    if queries is not None and (measure is None or acceptance is not None):
        raise DraftpickError("--queries measures the acceptance of --measure ARM; give no other")
    if acceptance is None and queries is None:
        raise DraftpickError(
            "give the acceptance rate, --acceptance 0.7, or measure it with --measure ARM "
            "--queries FILE"
        )
    if out is not None and out.suffix.lower() != ".png":
        raise DraftpickError(f"--out draws a PNG; give a name that ends in .png, not {out}")
    if out is not None:
        check_file(out, "--out")
    rates = inputs.parse_numbers("--acceptance", acceptance, 0, 1) if acceptance is not None else []
    if inner_acceptance is not None and len(rates) != 2:
        raise DraftpickError("--inner-acceptance is for two drafters, the better one first")
    if cost is not None:
        drafters = inputs.from_numbers(rates, inputs.parse_numbers("--cost", cost, 0))
    elif parameters is not None:
        counts = inputs.parse_numbers("--parameters", parameters, 0)
        drafters = inputs.from_numbers(rates, inputs.parameter_costs(counts))
    else:
        if len(rates) > 1:
            raise DraftpickError("one arm has one acceptance rate; give --acceptance one number")
        if measure is not None:
            asked = [] if queries is None else first_per_task(read_queries(queries), limit)
            from collect.replay.costs import costs_of

            engine = inputs.load_single(options, measure)
            if asked:
                rates = [inputs.measured_acceptance(engine, measure, asked, max_new_tokens)]
            measured = costs_of(engine)
        else:
            assert costs is not None
            measured = inputs.read_costs(costs)
        drafters = [inputs.from_costs(str(measure or arm), rates[0], measured, longest)]
    found = report(drafters, inner_acceptance, longest)
    _show(partial(tables_of, found), found, as_json)
    if out is not None:
        from .plot import draw

        draw(found, out)
        print(f"drawn: {out}", file=sys.stderr)


def _show(made: Callable[[int], list[Table]], found: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(made)
