"""`draftpick theory`: how far to draft, and what it should gain, from acceptance and costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from .theory_inputs import DrafterFigures

HELP = """How far should a drafter draft, and what will it gain? Computed, not measured.

Two numbers decide: the acceptance rate (the share of drafted tokens that the target accepts) and
the cost of a drafted token, in passes of the target. The table shows for every draft length k the
tokens a round gives, what the round costs, and the expected speed-up over plain decoding; the best
k is marked. With two or more drafters, the better first, cascades of them are worked out too
(Chen et al., Cascade Speculative Drafting).

Costs may be given (--cost), be ratios of parameters (--parameters), be read from what
`draftpick collect` measured (--costs), or be measured here and now (--measure).

\b
  draftpick theory --acceptance 0.7 --cost 0.1
  draftpick theory --acceptance 0.8,0.65 --cost 0.05,0.01 --inner-acceptance 0.7
  draftpick theory --acceptance 0.7 --parameters 135e6,10e6 --out theory.png
  draftpick theory --acceptance 0.6 --costs rewards/manifest.json --arm draft-general
  draftpick theory --measure draft-general --queries questions.jsonl
  draftpick theory --table1
"""


def mount(app: typer.Typer) -> None:
    """Add the command to an application; it raises DraftpickError for the user's mistakes."""
    app.command("theory", help=HELP)(theory)


def theory(
    acceptance: Annotated[
        str | None, typer.Option(metavar="A,B", help="Acceptance rate of each drafter, 0 to 1.")
    ] = None,
    cost: Annotated[
        str | None, typer.Option(metavar="A,B", help="Cost of each drafter's token, target = 1.")
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="T,A,B", help="Costs by size: parameters of the target, then each."),
    ] = None,
    inner_acceptance: Annotated[
        str | None,
        typer.Option(
            metavar="A", help="Share of the second drafter's tokens that the first accepts."
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Measured costs: manifest.json of a collection."),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="With --costs: whose.")] = None,
    measure: Annotated[
        str | None, typer.Option(metavar="ARM", help="Measure this arm's costs on this machine.")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --measure: measure the acceptance too, on these queries."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With --queries: so many a task.")] = 2,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="With --queries: tokens of an answer.")
    ] = 64,
    longest: Annotated[int, typer.Option(min=1, max=64, help="Longest draft looked at.")] = 16,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the curves.")] = None,
    table1: Annotated[
        bool,
        typer.Option("--table1", help="Compute table 1 of Cascade Speculative Drafting instead."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    target: Annotated[
        str, typer.Option(help="With --measure: the model that answers.")
    ] = "smollm2-135m-instruct",
    config: Annotated[
        Path | None, typer.Option(metavar="YAML", help="With --measure: your own arms.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="With --measure.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="With --measure: auto, cpu or cuda.")] = "auto",
) -> None:
    from .errors import DraftpickError

    if table1:
        if any((acceptance, cost, parameters, costs, measure)):
            raise DraftpickError("--table1 takes no figures of yours; leave the others out")
        _show([_table_1()], _table_1_json(), as_json)
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
    drafters = _drafters(
        acceptance, cost, parameters, costs, arm or measure, queries, limit, max_new_tokens,
        longest, (target, config, dtype, device),
    )  # fmt: skip
    inner = _inner(inner_acceptance, drafters)
    found = report(drafters, inner, longest)
    _show([_length_table(drafter) for drafter in found["drafters"]] + _cascade_table(found), found,
          as_json)  # fmt: skip
    if out is not None:
        from .theory_plot import draw

        draw(found, out)
        print(f"drawn: {out}", file=sys.stderr)


def report(
    drafters: list[DrafterFigures], inner_acceptance: float | None, longest: int
) -> dict[str, Any]:
    """Every figure that the command shows: `drafters` (a table over k each), `horizontal` of two
    or more, `vertical` of the first two where the inner acceptance is known."""
    from .theory import best_horizontal, best_vertical

    found: dict[str, Any] = {"drafters": [_over_k(drafter, longest) for drafter in drafters]}
    if len(drafters) > 1:
        lengths, gain = best_horizontal(
            [d.acceptance for d in drafters], [d.cost for d in drafters], longest
        )
        found["horizontal"] = {"lengths": list(lengths), "speedup": gain}
    if inner_acceptance is not None:
        first, second = drafters[:2]
        (reviews, k), gain = best_vertical(
            first.acceptance, inner_acceptance, first.cost, second.cost, longest
        )
        found["vertical"] = {"reviews": reviews, "k": k, "speedup": gain}
    return found


def _over_k(drafter: DrafterFigures, longest: int) -> dict[str, Any]:
    from .theory import best_length, speculative

    rows = []
    for k in range(longest + 1):
        verify = 1.0 if drafter.verify is None else drafter.verify[k]
        gain = speculative(drafter.acceptance, drafter.cost, k, verify)
        spent = k * drafter.cost + verify
        rows.append({"k": k, "tokens": gain * spent, "cost": spent, "speedup": gain})
    best = best_length(drafter.acceptance, drafter.cost, longest, drafter.verify)
    return {
        "name": drafter.name,
        "acceptance": drafter.acceptance,
        "cost": drafter.cost,
        "best_k": best,
        "speedup": rows[best]["speedup"],
        "over_k": rows,
    }


def _drafters(
    acceptance: str | None,
    cost: str | None,
    parameters: str | None,
    costs: Path | None,
    arm: str | None,
    queries: Path | None,
    limit: int,
    max_new_tokens: int,
    longest: int,
    engine_options: tuple[str, Path | None, str, str],
) -> list[DrafterFigures]:
    """The figures in whichever way they were given."""
    from . import theory_inputs as inputs
    from .errors import DraftpickError

    rates = inputs.parse_numbers("--acceptance", acceptance, 0, 1) if acceptance else []
    if cost is not None:
        return inputs.from_numbers(rates, inputs.parse_numbers("--cost", cost, 0))
    if parameters is not None:
        counts = inputs.parse_numbers("--parameters", parameters, 0)
        return inputs.from_numbers(rates, inputs.parameter_costs(counts))
    assert arm is not None
    if len(rates) > 1:
        raise DraftpickError("one arm has one acceptance rate; give --acceptance one number")
    if costs is not None:
        return [inputs.from_costs(arm, rates[0], *inputs.read_costs(costs), longest)]
    target, config, dtype, device = engine_options
    engine = inputs.load_single(target, config, arm, dtype, device)
    if queries is not None:
        rates = [inputs.measured_acceptance(engine, arm, queries, limit, max_new_tokens)]
    measured = engine.cost_table
    return [inputs.from_costs(arm, rates[0], measured.verify_s, measured.draft_s, longest)]


def _inner(text: str | None, drafters: list[DrafterFigures]) -> float | None:
    from .errors import DraftpickError
    from .theory_inputs import parse_numbers

    if text is None:
        return None
    if len(drafters) != 2:
        raise DraftpickError("--inner-acceptance is for two drafters, the better one first")
    numbers = parse_numbers("--inner-acceptance", text, 0, 1)
    if len(numbers) > 1:
        raise DraftpickError("--inner-acceptance takes one number")
    return numbers[0]


def _show(tables: list[Table], found: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100)
    for table in tables:
        console.print(table)


def _length_table(found: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{found['name']}: acceptance {found['acceptance']:.3g}, cost {found['cost']:.3g}"
    )
    for heading in ("k", "tokens a round", "cost of a round", "speed-up", ""):
        table.add_column(heading, justify="right")
    for row in found["over_k"]:
        best = row["k"] == found["best_k"]
        table.add_row(
            str(row["k"]), f"{row['tokens']:.2f}", f"{row['cost']:.2f}", f"{row['speedup']:.2f}x",
            "best" if best else "", style="bold green" if best else None,
        )  # fmt: skip
    return table


def _cascade_table(found: dict[str, Any]) -> list[Table]:
    from rich.table import Table

    if "horizontal" not in found:
        return []
    table = Table(title="What these drafters give together")
    for heading in ("method", "best lengths", "speed-up"):
        table.add_column(heading)
    for drafter in found["drafters"]:
        table.add_row(drafter["name"], f"k = {drafter['best_k']}", f"{drafter['speedup']:.2f}x")
    across = found["horizontal"]
    tokens = ", then ".join(str(n) for n in across["lengths"])
    table.add_row("horizontal cascade", f"{tokens} tokens", f"{across['speedup']:.2f}x")
    if "vertical" in found:
        up = found["vertical"]
        table.add_row(
            "vertical cascade", f"{up['reviews']} reviews of {up['k']}", f"{up['speedup']:.2f}x"
        )
    return [table]


def _table_1() -> Table:
    from rich.table import Table

    table = Table(title="Cascade Speculative Drafting, table 1: simulated EWIF")
    for heading in ("data set", "drafters", "tokens", "EWIF", "in the paper"):
        table.add_column(heading)
    for row in _table_1_json():
        table.add_row(
            row["dataset"], ", ".join(row["drafters"]), ", ".join(map(str, row["lengths"])),
            f"{row['ewif']:.2f}", f"{row['printed']:.2f}",
        )  # fmt: skip
    return table


def _table_1_json() -> list[dict[str, Any]]:
    from .theory import TABLE_1

    return [
        {
            "dataset": row.dataset,
            "drafters": list(row.drafters),
            "lengths": list(row.lengths),
            "ewif": row.ewif(),
            "printed": row.printed,
        }
        for row in TABLE_1
    ]
