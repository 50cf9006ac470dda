"""The pictures of a summary. Drawn off screen; every function returns a figure."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from collect.queries import OVERALL

from .markdown import methods_of
from .records import BASELINE, ROUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speedups(summary: dict[str, Any]) -> Figure:
    """Grouped bars: the speed-up of every arm and of the routed decode on every task."""
    tasks = [*summary["tasks"], OVERALL]
    figure, axes = _figure(width=max(7.0, 1.6 * len(tasks)))
    rows = {n: c for n, c in methods_of(summary).items() if n not in (BASELINE, "oracle")}
    shown = {
        name: (cells, "black" if name == ROUTED else f"C{i % 10}")
        for i, (name, cells) in enumerate(rows.items())
    }
    _grouped(axes, tasks, shown, 0.84)
    axes.set_title("Speed-up over autoregressive decoding, with 95% intervals")
    return figure


def routed_against(summary: dict[str, Any]) -> Figure:
    """Bars: routed next to the best fixed arm and the per-question oracle, on every task."""
    tasks = [*summary["tasks"], OVERALL]
    rows = methods_of(summary)
    shown = {}
    if summary["best_fixed"] is not None:
        arm = summary["best_fixed"]["arm"]
        shown[f"best fixed arm ({arm})"] = (rows[arm], "#9aa5b1")
    if ROUTED in rows:
        shown[ROUTED] = (rows[ROUTED], "black")
    shown["oracle (optimistic)"] = (rows["oracle"], "#e0b050")
    figure, axes = _figure(width=max(7.0, 1.3 * len(tasks)))
    _grouped(axes, tasks, shown, 0.8)
    axes.set_title("The learned choice and fixed ones")
    return figure


def choices(summary: dict[str, Any]) -> Figure:
    """Heat map: the share of each task's answers that the policy gave to each arm."""
    counts = summary["policy_choices"] or {}
    arms, tasks = list(summary["arms"]), list(counts)
    table = np.array([[counts[task].get(arm, 0) for arm in arms] for task in tasks], dtype=float)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)  # [tasks, arms]
    figure, axes = _figure(width=2.5 + 0.9 * len(arms), height=1.6 + 0.45 * len(tasks))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
    axes.set_yticks(range(len(tasks)), tasks)
    for y, x in np.ndindex(*shares.shape):
        if shares[y, x] > 0:
            axes.text(
                x, y, f"{shares[y, x]:.0%}", ha="center", va="center",
                color="white" if shares[y, x] > 0.5 else "black",
            )  # fmt: skip
    axes.set_title("Which arm the policy chose")
    return figure


def all_of(summary: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], Figure]]:
    """The pictures that this summary can fill, by file name."""
    drawn: dict[str, Callable[[dict[str, Any]], Figure]] = {
        "speedup": speedups,
        "routed": routed_against,
    }
    if summary["policy_choices"]:
        drawn["choices"] = choices
    return drawn


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _figure(width: float, height: float = 4.0) -> tuple[Figure, Any]:
    # A bare Figure draws without pyplot, so without a display and without global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _bars(cells: dict[str, Any], tasks: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Heights [tasks] and error bars [2, tasks]; nan where there is no figure."""
    heights = np.full(len(tasks), np.nan)
    errors = np.zeros((2, len(tasks)))
    for i, task in enumerate(tasks):
        figures = cells[task]
        if figures is None or figures["speedup_vs_ar"] is None:
            continue
        heights[i] = figures["speedup_vs_ar"]
        if figures["ci95"] is not None:
            low, high = figures["ci95"]
            errors[:, i] = max(heights[i] - low, 0), max(high - heights[i], 0)
    return heights, errors


def _grouped(
    axes: Any, tasks: list[str], shown: dict[str, tuple[dict[str, Any], str]], room: float
) -> None:
    """A group of bars for each task. shown: name -> cells and colour. room: of a group, in units of
    the axis."""
    width = room / max(len(shown), 1)
    for i, (name, (cells, colour)) in enumerate(shown.items()):
        left = np.arange(len(tasks)) - room / 2 + width * (i + 0.5)
        heights, errors = _bars(cells, tasks)
        axes.bar(left, heights, width, yerr=errors, label=name, color=colour, error_kw={"lw": 0.7})
    axes.axhline(1.0, color="grey", lw=0.8, ls="--")
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("times autoregressive")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=3, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
