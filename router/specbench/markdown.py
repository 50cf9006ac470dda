"""The summary as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collect.queries import OVERALL

from ..tabulated import Tabulated
from .records import BASELINE, ORACLE, ROUTED

EXPLAINED = (
    "Speed-up: tokens per second, end-of-sequence token and prefill included, over the "
    "autoregressive arm's on the same questions, as a ratio of sums; intervals by bootstrap over "
    "questions. By task: mean of the tasks' speed-ups. By question: mean of the questions' "
    "speed-ups. Decode: without the prefill. Tokens per round: the target's own included. Other "
    "ids: answers that differ from the autoregressive arm's."
)


def methods_of(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of every table: the arms, then candidates and routed where they ran, then the oracle."""
    rows: dict[str, dict[str, Any]] = summary["arms"] | summary.get("candidates", {})
    if summary["routed"] is not None:
        rows[ROUTED] = summary["routed"]
    rows[ORACLE] = summary["oracle"]
    return rows


def _speeds(figures: dict[str, Any]) -> dict[str, str]:
    return {
        "tok/s": f"{figures['tokens_per_s']:.1f}",
        "speed-up": times(figures["speedup_vs_ar"]),
        "95% interval": interval(figures["ci95"]),
        "by task": times(figures["speedup_mean_over_tasks"]),
        "by question": times(figures["speedup_mean_over_questions"]),
        "decode": times(figures["decode_speedup_vs_ar"]),
    }


def _drafts(figures: dict[str, Any]) -> dict[str, str]:
    others = figures["differs_from_ar"]
    return {
        "tok/round": f"{figures['mean_accepted']:.2f}",
        "accepted": percent(figures["acceptance_rate"]),
        "quality": percent(figures["quality"]),
        "repeats": percent(figures["repetitive_share"]),
        "no repeats": times(figures["speedup_without_repetition"]),
        "other ids": "-" if others is None else f"{others} of {figures['compared']}",
    }


def _shares(figures: dict[str, Any]) -> dict[str, str]:
    parts = ("prefill", "draft", "verify", "other", "policy")
    shares = {part: percent(figures[f"{part}_share"]) for part in parts}
    return shares | {"target calls a token": f"{figures['target_calls_per_token']:.2f}"}


def _overall(
    title: str, summary: dict[str, Any], cells: Callable[[dict[str, Any]], dict[str, str]]
) -> Tabulated:
    """A row for each method's figures over all tasks. cells: of the figures, by heading."""
    found = {name: each[OVERALL] for name, each in methods_of(summary).items()}
    made = {name: cells(figures) for name, figures in found.items() if figures}
    headings = list(next(iter(made.values()), {}))
    rows = [[name, *made.get(name, dict.fromkeys(headings, "-")).values()] for name in found]
    return Tabulated(title, ["method", *headings], rows)


def share_table(summary: dict[str, Any]) -> Tabulated:
    """Tabulate where the time goes, and how often the target is asked."""
    return _overall("Where the time goes", summary, _shares)


def task_table(
    summary: dict[str, Any], field: str = "speedup_vs_ar", title: str = "Speed-up by task"
) -> Tabulated:
    """One field by task; the fastest fixed arm of a task is bold."""
    tasks = list(summary["tasks"])
    best = (summary["best_fixed"] or {}).get("per_task", {})
    rows = []
    for name, cells in methods_of(summary).items():
        row = [name]
        for task in tasks:
            figures = cells[task]
            text = "-" if figures is None else times(figures[field])
            wins = field == "speedup_vs_ar" and best.get(task, {}).get("arm") == name
            row.append(f"**{text}**" if wins else text)
        rows.append(row)
    return Tabulated(title, ["method", *tasks], rows)


def quality_table(summary: dict[str, Any]) -> Tabulated:
    """The tasks that have a quality measure."""
    baseline = summary["arms"][BASELINE]
    measures = {
        task: baseline[task]["quality_measure"]
        for task in summary["tasks"]
        if baseline[task] is not None and baseline[task]["quality_measure"]
    }
    rows = [
        [name, *[percent(cells[task] and cells[task]["quality"]) for task in measures]]
        for name, cells in methods_of(summary).items()
    ]
    heads = ["method", *[f"{task} ({name})" for task, name in measures.items()]]
    return Tabulated("Quality", heads, rows)


def choice_table(summary: dict[str, Any]) -> Tabulated:
    """How often the policy chose each arm."""
    arms = list(summary["arms"])
    choices = summary["policy_choices"] or {}
    rows = [[task, *[str(counts.get(arm, 0)) for arm in arms]] for task, counts in choices.items()]
    return Tabulated("Arms that the policy chose", ["task", *arms], rows)


def sections(summary: dict[str, Any]) -> list[Tabulated]:
    """All tables that the summary can fill; the first three end a run on the terminal."""
    decode = "decode_speedup_vs_ar", "Speed-up by task, without the prefill"
    made = [
        _overall("Overall", summary, _speeds),
        _overall("Drafts and answers", summary, _drafts),
        task_table(summary),
        task_table(summary, *decode),
        quality_table(summary),
        choice_table(summary),
    ]
    return [one for one in made if len(one.headings) > 1 and one.rows]


def headline(summary: dict[str, Any]) -> list[str]:
    """The main figures of the tables, in sentences."""
    sentences = []
    best = summary["best_fixed"]
    if best is not None:
        sentences.append(
            f"Best fixed arm: {best['arm']}, {times(best['overall']['speedup_vs_ar'])} the speed "
            "of autoregressive decoding."
        )
    if summary["routed"] is not None and summary["routed"][OVERALL] is not None:
        routed = summary["routed"][OVERALL]
        sentences.append(
            f"Routed: {times(routed['speedup_vs_ar'])} {interval(routed['ci95'])}, embedding and "
            "policy included."
        )
        against = summary["routed_vs_best_fixed"]
        if against is not None:
            sentences.append(
                f"Routed over the best fixed arm: {times(against['ratio'])} "
                f"{interval(against['ci95'])}."
            )
        if summary["policy_overhead_s"] is not None:
            sentences.append(
                f"Choosing an arm takes {summary['policy_overhead_s'] * 1e3:.2f} ms per answer, "
                f"{percent(summary['policy_overhead_share'], 2)} of decoding time."
            )
    oracle = summary["oracle"][OVERALL]
    if oracle is not None:
        sentences.append(f"Oracle: {times(oracle['speedup_vs_ar'])} ({summary['oracle']['note']}).")
    if summary.get("disturbed"):
        sentences.append(
            f"Other programs kept cores busy while {summary['disturbed']} of "
            f"{summary['questions']} questions were timed, so these figures are unreliable. "
            "Measure again, or read the medians over questions (`speedup_median` in summary.json)."
        )
    return sentences + failures(summary)


def failures(summary: dict[str, Any]) -> list[str]:
    """A sentence for each reason why answers are missing."""
    counts = Counter((error["method"], error["error"]) for error in summary["errors"])
    return [
        f"{method}: {count} answers failed and are left out ({reason})."
        for (method, reason), count in counts.items()
    ]


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def interval(value: Sequence[float] | None) -> str:
    return "-" if value is None else f"{value[0]:.2f} to {value[1]:.2f}"


def render(summary: dict[str, Any]) -> str:
    """The whole page."""
    counts = ", ".join(f"{task} {count}" for task, count in summary["tasks"].items())
    lines = ["# Spec-Bench", "", f"{summary['questions']} questions ({counts}).", ""]
    lines += [f"- {sentence}" for sentence in headline(summary)]
    for one in sections(summary):
        lines += ["", f"## {one.title}", "", *table_lines(one.headings, one.rows)]
    lines += ["", EXPLAINED]
    hardware = summary.get("hardware")
    if hardware:
        known = ", ".join(f"{name} {value}" for name, value in hardware.items() if value)
        lines += ["", f"Measured on {known}."]
    return "\n".join(lines) + "\n"


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, numbers to the right."""
    yield "| " + " | ".join(headings) + " |"
    yield "| --- |" + " ---: |" * (len(headings) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
