"""What `draftpick train --seeds` and `--alphas` print: a row a run, and means with deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from policies.tracking.seeds import Spread, Sweep


def sweep_tables(found: Sweep, width: int) -> list[Table]:
    """For a terminal of `width` columns."""
    from decoders.common.terminal import tables
    from policies.tracking.seeds import Spread, rows_of

    rows, means = [], []
    for group in found.groups:
        for row in rows_of(group):
            closed = "-" if row["gap_closed"] is None else f"{row['gap_closed']:.1%}"
            name = f"{group.name}, seed {row['seed']}".removeprefix(", ")
            figures = [f"{row['reward']:.4f}", f"{row['gain']:.4f}", f"{row['gain_percent']:.1f}%"]
            rows.append([name, row["saved"], *figures, closed])
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else "1 seed"
        means.append(
            [
                f"{group.name}, {seeds}".removeprefix(", "),
                _words(group.spreads["value/greedy"]),
                _words(group.spreads["value/gain"]),
                _words(Spread.of(group.percents), "%", 1),
            ]
        )
    heads = ["run", "saved", "reward", "gain", "gain", "gap closed"]
    made = tables("Each run, against its best fixed arm", heads, rows, width)
    title = "Mean over seeds, and standard deviation"
    return made + tables(title, ["runs", "reward", "gain", "gain"], means, width)


def _words(spread: Spread, unit: str = "", digits: int = 4) -> str:
    around = "" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}"
    return f"{spread.mean:.{digits}f}{around}{unit}"


def sweep_json(found: Sweep) -> dict[str, Any]:
    """JSON-ready."""
    from policies.mlflow_store import shown
    from policies.tracking.seeds import rows_of

    return {
        "run_id": found.run_id,
        "experiment": found.experiment,
        "tracking_uri": shown(found.tracking_uri),
        "policy": str(found.first.folder),
        "registered": found.first.registered,
        "groups": [
            {
                "name": group.name,
                "saved": group.saved,
                "metrics": {
                    key: {"mean": one.mean, "std": one.deviation}
                    for key, one in group.spreads.items()
                },
                "runs": [_without_nan(row) for row in rows_of(group)],
            }
            for group in found.groups
        ],
    }


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and v != v else v for k, v in row.items()}


def where(found: Sweep) -> Sequence[str]:
    """Lines that say where things are."""
    from policies.mlflow_store import shown

    folders = [
        f"Policy:     {group.runs[0].folder}" + (f" ({group.name})" if group.name else "")
        for group in found.groups
    ]
    if any(len(group.runs) > 1 for group in found.groups):
        folders.append("            of the first seed: the best of several would flatter itself")
    return [
        *folders,
        f"MLflow run: {found.run_id} (experiment {found.experiment}), with a child for each run",
        *([f"Registered: {found.first.registered}"] if found.first.registered else []),
        f"Look:       mlflow ui --backend-store-uri {shown(found.tracking_uri)}",
    ]
