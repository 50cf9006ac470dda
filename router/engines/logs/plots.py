"""The pictures of replayed traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .report import TrafficReport, kind_and_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_length(made: TrafficReport) -> Figure:
    """Accepted share and tokens a pass over the draft length, a line for each kind of arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, made, "acceptance")
    _lines(right, made, "tokens_a_pass")
    left.set(xlabel="tokens of a draft", ylabel="accepted, share of drafted", ylim=(0, None))
    right.set(xlabel="tokens of a draft", ylabel="tokens a pass of the model")
    right.axhline(1.0, color="grey", lw=0.8, ls="--")
    right.legend(fontsize=8, frameon=False)
    return figure


def _lines(axes: Any, made: TrafficReport, name: str) -> None:
    kinds: dict[str, list[tuple[int, Any]]] = {}
    for one in made.drafting:
        kind, length = kind_and_length(one.arm)
        if one.arm != made.source.traffic.plain:
            kinds.setdefault(kind, []).append((length or 0, getattr(one, name)))
    for kind, points in kinds.items():
        lengths = [length for length, _ in points]
        means, errors = _bars([figure for _, figure in points])
        axes.errorbar(lengths, means, yerr=errors, marker="o", ms=4, capsize=3, label=kind)
    axes.spines[["top", "right"]].set_visible(False)


def speeds(made: TrafficReport) -> Figure:
    """Bars: the speed-up of every arm over plain decoding, a colour for each load."""
    from matplotlib.figure import Figure

    first = next(iter(made.speeds.values()))
    plain = made.source.traffic.plain
    arms = [one.arm for one in first if one.arm != plain]
    figure = Figure(figsize=(max(6.0, 0.75 * len(arms)), 3.8), layout="constrained")
    axes = figure.add_subplot()
    width = 0.84 / len(made.speeds)
    for number, (load, each) in enumerate(made.speeds.items()):
        of = {one.arm: one.speedup for one in each}
        means, errors = _bars([of[arm] for arm in arms])
        left = np.arange(len(arms)) - 0.42 + width * (number + 0.5)
        name = "load of the logs" if load is None else f"{load} at once"
        axes.bar(left, means, width, yerr=errors, label=name, error_kw={"lw": 0.7})
    axes.axhline(1.0, color="grey", lw=0.8, ls="--")
    axes.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
    axes.set_ylabel("times plain decoding")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def by_work(made: TrafficReport) -> Figure:
    """Heat map: tokens a pass of every arm on every kind of work."""
    from matplotlib.figure import Figure

    plain = made.source.traffic.plain
    arms = [one.arm for one in made.drafting if one.arm != plain]
    tasks = list(made.by_task)
    table = np.array(
        [
            [of[arm].tokens_a_pass.mean for arm in arms]
            for _, each in made.by_task.values()
            for of in [{one.arm: one for one in each}]
        ]
    )
    figure = Figure(figsize=(2.5 + 0.7 * len(arms), 1.6 + 0.42 * len(tasks)), layout="constrained")
    axes = figure.add_subplot()
    most = max(1.1, float(np.nanmax(table)))
    axes.imshow(table, cmap="Blues", vmin=1, vmax=most, aspect="auto")
    axes.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
    axes.set_yticks(range(len(tasks)), tasks)
    for y, x in np.ndindex(*table.shape):
        dark = table[y, x] > (1 + most) / 2
        axes.text(x, y, f"{table[y, x]:.2f}", ha="center", va="center", fontsize=8,
                  color="white" if dark else "black")  # fmt: skip
    return figure


def _bars(figures: list[Any]) -> tuple[list[float], np.ndarray]:
    """Means and [2, n] errors; 0 where there is no interval."""
    means = [one.mean for one in figures]
    ends = [(max(one.mean - one.low, 0.0), max(one.high - one.mean, 0.0)) for one in figures]
    return means, np.nan_to_num(np.array(ends, dtype=np.float64).T)
