"""The pictures of a training run and of headroom, without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from decoders.common.files import replacing

from ..evaluation.calibration import Calibration
from ..evaluation.decisions import Closed
from ..evaluation.evaluate import Evaluation
from ..records import EpochStats
from ..selection.headroom import Headroom

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLICY, REFERENCE, GAP = "#1f77b4", "#b0b0b0", "#ff7f0e"


def all_figures(
    history: list[EpochStats],
    evaluation: Evaluation,
    arms: list[str],
    reward_name: str,
    closed: Sequence[Closed] = (),
    calibrated: Calibration | None = None,
) -> dict[str, Figure]:
    """File name -> figure; the two curves only where there is a history, the gap only where there
    is one, and the calibration only where there is something to compare."""
    figures = {
        "values.png": value_bars(evaluation, reward_name),
        "arm_choices.png": arm_choices(evaluation, arms),
    }
    if any(one.share is not None for one in closed):
        figures["gap_closed.png"] = gap_bars(closed)
    if calibrated is not None:
        figures["calibration.png"] = calibration_curve(calibrated, reward_name)
    if history:
        figures["reward_curve.png"] = reward_curve(history, evaluation, reward_name)
        figures["arm_shares.png"] = arm_shares(history, arms)
    return figures


def reward_curve(history: list[EpochStats], evaluation: Evaluation, reward_name: str) -> Figure:
    """Mean reward per epoch on training and validation queries, next to two reference lines."""
    figure, axes = _axes(7.6, 4.0)
    epochs = [row.epoch for row in history]
    axes.plot(epochs, [row.train_reward for row in history], marker="o", label="train, sampled")
    axes.plot(epochs, [row.train_greedy for row in history], marker="o", label="train, greedy")
    sampled = [(r.epoch, r.validation_reward) for r in history if r.validation_reward is not None]
    greedy = [(r.epoch, r.validation_greedy) for r in history if r.validation_greedy is not None]
    for points, label in ((sampled, "validation, sampled"), (greedy, "validation, greedy")):
        if points:
            axes.plot(*zip(*points, strict=True), marker="s", linestyle="--", label=label)
    for name, label, style in (("best-fixed", "best fixed arm", ":"), ("oracle", "oracle", "-.")):
        label = f"{label}, queries that judge"
        axes.axhline(evaluation[name].mean, color=REFERENCE, linestyle=style, label=label)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel=f"mean reward ({reward_name})", title="Reward while training")
    figure.legend(fontsize=8, loc="outside right center")
    return figure


def arm_shares(history: list[EpochStats], arms: list[str]) -> Figure:
    """The probability that the policy gives each arm, mean over training queries, per epoch."""
    figure, axes = _axes(7.6, 4.0)
    for arm in arms:
        shares = [row.arm_shares[arm] for row in history]
        axes.plot([row.epoch for row in history], shares, marker="o", label=arm)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel="mean probability", ylim=(0, 1), title="Arm shares in training")
    figure.legend(fontsize=8, loc="outside right center")
    return figure


def value_bars(evaluation: Evaluation, reward_name: str) -> Figure:
    """The policy's value and every reference row's, with bootstrap intervals."""
    rows = [row for row in evaluation.rows if row.queries][::-1]
    figure, axes = _axes(7.2, 1.2 + 0.32 * len(rows))
    places = range(len(rows))
    means = [row.mean for row in rows]
    errors = _errors(means, [(row.low, row.high) for row in rows])
    colors = [POLICY if row.name in ("greedy", "dynamic") else REFERENCE for row in rows]
    axes.barh(places, means, xerr=errors, color=colors, capsize=3)
    labels = [f"policy, {r.name}" if r.name in ("greedy", "dynamic") else r.name for r in rows]
    axes.set_yticks(places, labels=labels)
    axes.set(xlabel=f"mean reward ({reward_name})", title="Exact value, 95% interval over queries")
    return figure


def arm_choices(evaluation: Evaluation, arms: list[str]) -> Figure:
    """Which arm the greedy policy takes for which task, as a heat map of shares."""
    tasks = evaluation.tasks
    figure, axes = _axes(2.5 + 0.9 * len(arms), 1.8 + 0.45 * len(tasks))
    axes.imshow(evaluation.choices, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(arms)), labels=arms, rotation=30, ha="right")
    axes.set_yticks(range(len(tasks)), labels=tasks)
    for i in range(len(tasks)):
        for j in range(len(arms)):
            share = float(evaluation.choices[i, j])
            ink = "white" if share > 0.6 else "black"
            axes.text(j, i, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=8)
    axes.set(xlabel="arm", ylabel="task", title="Share of a task's queries that each arm gets")
    return figure


def gap_bars(closed: Sequence[Closed]) -> Figure:
    """The share of the gap between best fixed arm and oracle that the policy closes, by task."""
    rows = [(one, one.share) for one in closed if one.share is not None][::-1]
    figure, axes = _axes(7.2, 1.4 + 0.36 * len(rows))
    shares = [100 * share for _, share in rows]
    errors = _errors(shares, [(100 * one.low, 100 * one.high) for one, _ in rows])
    colors = [POLICY if one.low > 0 else REFERENCE for one, _ in rows]
    axes.barh(range(len(rows)), shares, xerr=errors, color=colors, capsize=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), labels=[f"{one.task} ({one.queries})" for one, _ in rows])
    axes.set(
        xlabel="closed, % of the gap (0: best fixed arm, 100: oracle)",
        ylabel="task (queries)",
        title="How much of the gap the policy closes\n95% intervals; blue: lower bound above 0",
    )
    return figure


def calibration_curve(found: Calibration, reward_name: str) -> Figure:
    """Predicted against observed values of the chosen arm, in bins."""
    figure, axes = _axes(5.2, 4.6)
    predicted, seen = [one.predicted for one in found.bins], [one.observed for one in found.bins]
    errors = _errors(seen, [(one.low, one.high) for one in found.bins])
    ends = [min(*predicted, *seen), max(*predicted, *seen)]
    axes.plot(ends, ends, color=REFERENCE, linestyle=":", label="if it were always right")
    axes.errorbar(
        predicted, seen, yerr=errors, marker="o", color=POLICY, capsize=3,
        label="seen, 95% intervals",
    )  # fmt: skip
    if found.of == "reward":
        axes.set(xlabel=f"predicted reward ({reward_name})", ylabel=f"earned ({reward_name})")
    else:
        axes.set(xlabel="probability of the arm taken", ylabel="share of rows it is the best on")
    rows = round(float(np.mean([one.rows for one in found.bins])))
    axes.set_title(f"Calibration of the arm taken, about {rows} rows a point")
    axes.legend(fontsize=8)
    return figure


def sweep_dots(percents: Mapping[str, Sequence[float]]) -> Figure:
    """Each run's gain over the best fixed arm, by group, next to the group's mean and deviation.

    percents: group -> a number a run, in percent of what the best fixed arm earns.
    """
    figure, axes = _axes(max(4.8, 2.4 + 1.1 * len(percents)), 4.0)
    for at, values in enumerate(percents.values()):
        known = np.array([one for one in values if np.isfinite(one)])
        if not len(known):
            continue
        axes.plot([at - 0.12] * len(known), known, "o", color=REFERENCE, alpha=0.7)
        deviation = float(known.std(ddof=1)) if len(known) > 1 else 0.0
        axes.errorbar(at + 0.12, known.mean(), yerr=deviation, fmt="s", color=POLICY, capsize=4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(-0.6, len(percents) - 0.4)
    axes.set_xticks(range(len(percents)), labels=list(percents))
    axes.set(
        ylabel="gain over best fixed arm, %",
        title="Each run (grey), and their mean with one deviation (blue)",
    )
    return figure


def _errors(means: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[list[float]]:
    """How far bars reach below and above. A percentile interval may lie wholly to one side of the
    mean of a very skewed row."""
    rows = list(zip(means, intervals, strict=True))
    below = [max(mean - low, 0.0) for mean, (low, _) in rows]
    return [below, [max(high - mean, 0.0) for mean, (_, high) in rows]]


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def draw_headroom(found: Headroom, path: Path) -> None:
    """Write the picture; its kind is by the name's ending. Raises OSError where the disk does."""
    with replacing(path) as stream:
        headroom_figure(found).savefig(stream, format=path.suffix.lstrip("."), dpi=150)


def headroom_figure(found: Headroom) -> Figure:
    """What each choice earns, with its interval, next to where the gap to the oracle lies."""
    from matplotlib.figure import Figure

    rows = max(len(found.choices), len(found.parts))
    figure = Figure(figsize=(11, 1.6 + 0.32 * rows), layout="constrained")
    left, right = figure.subplots(1, 2)
    choices = found.choices[::-1]
    means = [one.mean for one in choices]
    errors = _errors(means, [(one.low, one.high) for one in choices])
    colors = [
        POLICY if one.gain.above_zero and one.kind != "oracle" else REFERENCE for one in choices
    ]
    left.barh(range(len(choices)), means, xerr=errors, color=colors, capsize=3)
    names = [f"best fixed ({found.best_fixed})" if o.kind == "fixed" else o.name for o in choices]
    left.set_yticks(range(len(choices)), labels=names)
    left.set(xlabel=f"mean reward ({found.reward})", title="What each choice earns, 95% intervals")
    parts = found.parts[::-1]
    fixed = [part.fixed for part in parts]
    gaps = [part.oracle - part.fixed for part in parts]
    right.barh(range(len(parts)), fixed, color=REFERENCE, label="best fixed arm")
    right.barh(range(len(parts)), gaps, left=fixed, color=GAP, label="gap to the oracle")
    where = [p.name if p.by == "task" else f"{p.by} {p.name}" for p in parts]
    right.set_yticks(range(len(parts)), labels=where)
    right.set(xlabel=f"mean reward ({found.reward})", title="Where the gap lies")
    right.legend(fontsize=8, loc="lower right")
    return figure
