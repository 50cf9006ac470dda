"""Quality over latency, a panel for each measure (Narasimhan et al., Faster Cascades via
Speculative Decoding, figure 2; Kim et al., Big Little Decoder, figures 4 and 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .markdown import main_panels, panel_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3


def draw(summary: dict[str, Any]) -> Figure:
    """A curve for each method, its markers growing in the order of the swept values; a cross for
    the target alone, dotted lines at its quality and one point below. Drawn off screen."""
    from matplotlib.figure import Figure

    panels = main_panels(summary)
    columns = max(1, min(len(panels), COLUMNS))
    lines = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(4.6 * columns, 3.8 * lines + 0.6), layout="constrained")
    at = {(point["arm"], point["task"]): point for point in summary["points"]}
    for number, panel in enumerate(panels, 1):
        _panel(figure.add_subplot(lines, columns, number), panel, summary["curves"], at)
    if panels:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False
        )
    return figure


def _panel(
    axes: Any,
    panel: dict[str, Any],
    curves: list[dict[str, Any]],
    at: dict[tuple[str, str], dict[str, Any]],
) -> None:
    task, measure = panel["task"], panel["measure"]
    for i, curve in enumerate(curves):
        known = [at[arm, task] for arm in curve["arms"] if (arm, task) in at]
        points = [(p["latency"], 100 * p["quality"][measure]) for p in known]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        sizes = [14 + 60 * n / max(1, len(points) - 1) for n in range(len(points))]
        color = f"C{i % 10}"
        axes.scatter(xs, ys, s=sizes, color=color, label=curve["name"], zorder=3)
        if curve["ordered"]:
            axes.plot(xs, ys, color=color, lw=1.2)
    target = 100 * panel["target_quality"]
    axes.plot(1.0, target, "x", color="black", markersize=9, label="target alone", zorder=4)
    for level in (target, max(target - 1, 0.0)):
        axes.axhline(level, color="grey", lw=0.8, ls=":")
    axes.set_title(panel_title(panel).replace("; ", "\n"), fontsize=9)
    axes.set_xlabel("latency, relative to the target alone", fontsize=8)
    axes.set_ylabel("quality (percent)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
