"""What `draftpick theory` says: the figures over k, the cascades, and their tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from decoders.costs.theory import TABLE_1, best_horizontal, best_length, best_vertical, speculative

from .inputs import DrafterFigures


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


def tables_of(found: dict[str, Any]) -> list[Table]:
    """A table over k for each drafter, and one of the cascades where there are several."""
    cascades = [_cascade_table(found)] if "horizontal" in found else []
    return [*(_length_table(drafter) for drafter in found["drafters"]), *cascades]


def _length_table(found: dict[str, Any]) -> Table:
    table = Table(
        title=f"{found['name']}: acceptance {found['acceptance']:.3g}, cost {found['cost']:.3g}"
    )
    for heading in ("k", "tokens a round", "cost of a round", "speed-up", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found["over_k"]:
        best = row["k"] == found["best_k"]
        table.add_row(
            str(row["k"]), f"{row['tokens']:.2f}", f"{row['cost']:.2f}", f"{row['speedup']:.2f}x",
            "best" if best else "", style="bold green" if best else None,
        )  # fmt: skip
    return table


def _cascade_table(found: dict[str, Any]) -> Table:
    table = Table(title="What these drafters give together")
    for heading in ("method", "best lengths", "speed-up"):
        table.add_column(heading, no_wrap=heading == "speed-up")
    for drafter in found["drafters"]:
        table.add_row(drafter["name"], f"k = {drafter['best_k']}", f"{drafter['speedup']:.2f}x")
    across = found["horizontal"]
    tokens = ", then ".join(str(n) for n in across["lengths"])
    table.add_row("horizontal cascade", f"{tokens} tokens", f"{across['speedup']:.2f}x")
    if "vertical" in found:
        up = found["vertical"]
        lengths = f"{up['reviews']} verifications of {up['k']}"
        if not up["k"]:
            lengths = f"{up['reviews']} tokens; no inner draft pays"
        table.add_row("vertical cascade", lengths, f"{up['speedup']:.2f}x")
    return table


def table_1() -> Table:
    """Ours beside the paper's."""
    table = Table(title="Cascade Speculative Drafting, table 1: simulated EWIF")
    for heading in ("data set", "drafters", "tokens", "EWIF", "in the paper"):
        table.add_column(heading, no_wrap=True)
    for row in table_1_json():
        table.add_row(
            row["dataset"], ", ".join(row["drafters"]), ", ".join(map(str, row["lengths"])),
            f"{row['ewif']:.2f}", f"{row['printed']:.2f}",
        )  # fmt: skip
    return table


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
