"""What came out, as Markdown and as an object for JSON: ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from router.specbench.candidates import DRAWN
from router.specbench.markdown import interval, percent, table_lines, times

from .draws import drawn_above
from .held_out import figures
from .records import MEAN, Claim, Column, Curve, Line, Measured, Reproduction, Table

SHARES = ("acceptance_rate", "quality")
HEADINGS = ("dynamic", "greedy", "uniform", "oracle")


def as_json(what: Reproduction, found: Measured, about: dict[str, Any]) -> dict[str, Any]:
    """name, title, differs, tables (title -> label -> column -> value, deviation, ci95, paper),
    curves (title -> value -> figures), claims; and all of `about`."""
    return {
        "name": what.name,
        "title": what.title,
        **about,
        "differs": list(what.differs),
        "tables": {
            table.title: {
                line.label: {
                    heading(column): _figure(table, line, place, found)
                    for place, column in enumerate(table.columns)
                }
                for line in table.lines
            }
            for table in what.tables
        },
        "curves": {
            title: {at: figures(point) for at, point in points.items()}
            for title, points in found.points.items()
        },
        "claims": [{"says": one.says, "verdict": verdict(one, found)} for one in what.claims],
        "by_chance": by_chance(what, found),
    }


HOLDS, FAILS, OPEN, UNSAID = "holds", "does not hold", "not settled", "cannot be said"


def verdict(claim: Claim, found: Measured) -> str:
    """HOLDS or FAILS, where margins decide with 95% confidence, else OPEN; UNSAID where figures
    that it needs are missing, or nothing meets its condition."""
    try:
        margins = claim.margins(found)
    except (KeyError, TypeError):
        return UNSAID
    if all(low > 0 for low, _ in margins):
        return HOLDS
    return FAILS if any(high < 0 for _, high in margins) else OPEN


def by_chance(what: Reproduction, found: Measured) -> list[str]:
    """Sentences about dynamic policies that are above their arms, and not with confidence."""
    plans, told = {plan.name: plan for plan in what.policies}, []
    for run in what.runs:
        for name in run.policies if run.dynamic and run.temperature > 0 else ():
            tasks = drawn_above(found, run.name, name + DRAWN, plans[name].arms)
            if tasks:
                told.append(
                    f"{run.name}: `{name}{DRAWN}` is above every arm that it draws from on "
                    f"{' and '.join(tasks)}, and not with 95% confidence: that much is noise of "
                    "the draws."
                )
    return told


def heading(column: Column) -> str:
    return column.title


def render(what: Reproduction, told: dict[str, Any]) -> str:
    """The page of `as_json`'s object."""
    return "\n".join(_lines(what, told)) + "\n"


def _lines(what: Reproduction, told: dict[str, Any]) -> Iterator[str]:
    yield from (f"# {what.title}", "")
    scale, minutes = told["scale"], told["seconds"] / 60
    yield (
        f"`make reproduce TABLE={what.name}`: {scale['questions']} questions, seeds of every "
        f"policy: {scale['seeds']}, minutes in the last run: {minutes:.1f}."
    )
    for table in what.tables:
        yield from ("", f"## {table.title}", "", *table_of(table, told["tables"][table.title]))
    for curve in what.curves:
        yield from ("", f"## {curve.title}", "", *curve_of(curve, told["curves"][curve.title]))
        if curve.paper:
            yield from ("", f"The paper: {curve.paper}")
    yield from ("", "## What the paper says, and what was found here", "")
    yield from table_lines(
        ["claim", "here"], [[claim["says"], claim["verdict"]] for claim in told["claims"]]
    )
    yield ""
    yield "A claim holds, or does not, where its margin says so with 95% confidence."
    yield from told["by_chance"]
    yield from ("", "## What differs from the paper", "")
    yield from (f"- {sentence}" for sentence in what.differs)
    yield ""
    yield (
        "Speed-up: tokens a second over plain decoding's on the same questions, prompts and the "
        f"choice of the arm included; {MEAN}: of the tasks' own. ±: the deviation over seeds; "
        "above temperature 0 over draws of the whole run, one with each seed. In brackets: 95% by "
        "bootstrap over questions."
    )
    hardware = told.get("hardware")
    if hardware:
        yield from ("", "Measured on " + ", ".join(f"{k} {v}" for k, v in hardware.items() if v))


def table_of(table: Table, told: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Its lines; the paper's figures stand beside where it has any."""
    shares = table.measure in SHARES
    headings, rows = ["", "ours"], []
    for column in table.columns:
        headings += (
            [heading(column), f"paper, {column.paper}"] if table.paper else [heading(column)]
        )
    for line in table.lines:
        row = [line.label, f"`{line.method}`"]
        for column in table.columns:
            figure = told[line.label][heading(column)]
            row.append(_ours(figure, shares))
            if table.paper:
                row.append(_value(figure["paper"], shares))
        rows.append(row)
    return table_lines(headings, rows)


def curve_of(curve: Curve, told: dict[str, dict[str, float]]) -> Iterator[str]:
    """A row for each value; the arms' shares last."""
    points = list(told.values())
    fixed = [name for name in points[0] if name.startswith("always ")]
    shares = [name for name in points[0] if name.startswith("share of ")]
    rows = []
    for value, point in told.items():
        row = [value]
        for name in HEADINGS:
            deviation = point.get(f"{name}_deviation")
            spread = "" if deviation is None else f" ± {deviation:.3f}"
            row.append(f"{point[name]:.3f}{spread}")
        row += [f"{point[name]:.3f}" for name in fixed] + [f"{point[n]:.0%}" for n in shares]
        rows.append(row)
    *others, oracle = HEADINGS
    oracle += " (optimistic)" if curve.temperature > 0 else ""  # it chooses by the answer drawn
    return table_lines([curve.axis, *others, oracle, *fixed, *shares], rows)


def _figure(table: Table, line: Line, place: int, found: Measured) -> dict[str, Any]:
    """One cell: value and its spread, None where nothing was answered; and the paper's value."""
    column = table.columns[place]
    theirs = table.paper.get(line.label)
    told: dict[str, Any] = {"paper": None if theirs is None else theirs[place]}
    try:
        cell = found.cell(column.run, line.method, column.task)
        value = found.value(column.run, line.method, column.task, table.measure)
    except KeyError:
        return {"value": None, "deviation": None, "ci95": None, **told}
    name = table.measure
    if column.task == MEAN and name == "speedup_vs_ar":
        name = "speedup_mean_over_tasks"
    of_speed = table.measure == "speedup_vs_ar" and column.task != MEAN
    return {
        "value": value,
        "deviation": cell.get(f"{name}_deviation"),
        "ci95": cell["ci95"] if of_speed else None,
        **told,
    }


def _ours(figure: dict[str, Any], shares: bool) -> str:
    text = _value(figure["value"], shares)
    if figure["deviation"] is not None:
        spread = figure["deviation"]
        text += f" ± {100 * spread:.1f}" if shares else f" ± {spread:.2f}"
    return text if figure["ci95"] is None else f"{text} ({interval(figure['ci95'])})"


def _value(value: float | None, shares: bool) -> str:
    return percent(value) if shares else times(value)
