"""The picture of `draftpick theory`: expected speed-up over the draft length."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(found: dict[str, Any], path: Path) -> None:
    """A curve for each drafter, its best length marked; a line for each cascade at its best.

    found: what `report.report` returned. Drawn off screen, without pyplot's global state.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for i, drafter in enumerate(found["drafters"]):
        rows, color = drafter["over_k"], f"C{i}"
        label = (
            f"{drafter['name']}: acceptance {drafter['acceptance']:.3g}, cost {drafter['cost']:.3g}"
        )
        ks, gains = [row["k"] for row in rows], [row["speedup"] for row in rows]
        axes.plot(ks, gains, color=color, marker=".", label=label)
        axes.plot(drafter["best_k"], drafter["speedup"], "o", color=color, markersize=9)
    for name, style in (("horizontal", "--"), ("vertical", ":")):
        if name in found:
            gain = found[name]["speedup"]
            axes.axhline(gain, color="black", ls=style, lw=1, label=f"best {name} cascade")
    axes.axhline(1.0, color="grey", lw=0.8)
    axes.set(xlabel="drafted tokens a round (k)", ylabel="expected speed-up")
    axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=130)
