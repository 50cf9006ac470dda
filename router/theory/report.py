"""What `draftpick theory` says: the figures over k, the cascades, and their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoders.common.terminal import tables, texts
from decoders.costs.theory import TABLE_1, best_horizontal, best_length, best_vertical, speculative

from .inputs import DrafterFigures

if TYPE_CHECKING:
    from rich.table import Table


def report(
    drafters: list[DrafterFigures], inner_acceptance: float | None, longest: int
) -> dict[str, Any]:
    """All figures: `drafters` (a table over k each), `horizontal` where there are two or more,
    `vertical` of the two where the inner acceptance is known."""
    found: dict[str, Any] = {"drafters": [_over_k(drafter, longest) for drafter in drafters]}
    if len(drafters) > 1:
        lengths, gain = best_horizontal(
            [d.acceptance for d in drafters], [d.cost for d in drafters], longest
        )
        found["horizontal"] = {"lengths": list(lengths), "speedup": gain}
    if inner_acceptance is not None:
        first, second = drafters[:2]
        (verifications, k), gain = best_vertical(
            first.acceptance, inner_acceptance, first.cost, second.cost, longest
        )
        found["vertical"] = {"reviews": verifications, "k": k, "speedup": gain}
    return found


def _over_k(drafter: DrafterFigures, longest: int) -> dict[str, Any]:
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


def tables_of(found: dict[str, Any], width: int) -> list[Table]:
    """A table over k for each drafter, and one of the cascades where there are several."""
    made = [table for drafter in found["drafters"] for table in _over_lengths(drafter, width)]
    return [*made, _cascades(found)] if "horizontal" in found else made


def _over_lengths(found: dict[str, Any], width: int) -> list[Table]:
    rows = []
    for row in found["over_k"]:
        cells = [f"{row['k']}", f"{row['tokens']:.2f}", f"{row['cost']:.2f}"]
        cells += [f"{row['speedup']:.2f}x", ""]
        if row["k"] == found["best_k"]:
            cells = [f"[bold green]{cell}[/bold green]" for cell in [*cells[:-1], "best"]]
        rows.append(cells)
    title = f"{found['name']}: acceptance {found['acceptance']:.3g}, cost {found['cost']:.3g}"
    return tables(title, ["k", "tokens a round", "cost of a round", "speed-up", ""], rows, width)


def _cascades(found: dict[str, Any]) -> Table:
    rows = [
        [drafter["name"], f"k = {drafter['best_k']}", f"{drafter['speedup']:.2f}x"]
        for drafter in found["drafters"]
    ]
    across = found["horizontal"]
    tokens = ", then ".join(str(n) for n in across["lengths"])
    rows.append(["horizontal cascade", f"{tokens} tokens", f"{across['speedup']:.2f}x"])
    if "vertical" in found:
        up = found["vertical"]
        lengths = f"{up['reviews']} verifications of {up['k']}"
        if not up["k"]:
            lengths = f"{up['reviews']} tokens; no inner draft pays"
        rows.append(["vertical cascade", lengths, f"{up['speedup']:.2f}x"])
    headings = ["method", "best lengths", "speed-up"]
    return texts("What these drafters give together", headings, rows, whole=0)


def table_1(width: int) -> list[Table]:
    """Ours next to the paper's."""
    rows = [
        [
            row["dataset"], ", ".join(row["drafters"]), ", ".join(map(str, row["lengths"])),
            f"{row['ewif']:.2f}", f"{row['printed']:.2f}",
        ]
        for row in table_1_json()
    ]  # fmt: skip
    title = "Cascade Speculative Drafting, table 1: simulated EWIF"
    return tables(title, ["data set", "drafters", "tokens", "EWIF", "in the paper"], rows, width)


def table_1_json() -> list[dict[str, Any]]:
    """A row each: data set, drafters, lengths, our figure, the paper's."""
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
