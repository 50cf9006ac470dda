"""The summary of a sweep as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collect.queries import OVERALL

from ..specbench.markdown import interval, percent, table_lines, times
from .points import AGREEMENT

NOT_REACHED = "not reached"
NAMES = {
    AGREEMENT: "agreement with the target's greedy answer",
    "bleu": "BLEU",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "exact_match": "exact match",
}


def render(summary: dict[str, Any]) -> str:
    """The whole page."""
    return "\n".join(_lines(summary)) + "\n"


def panel_table(panel: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one panel."""
    headings = [
        "method", "latency at the target's quality", "within one point of it",
        "best quality within the target's latency", "at latency",
    ]  # fmt: skip
    rows = [
        [
            reading["curve"],
            _reached(reading["latency_at_target_quality"]),
            _reached(reading["latency_within_one_point"]),
            NOT_REACHED if reading["best_quality"] is None else percent(reading["best_quality"]),
            _reached(reading["best_quality_latency"]),
        ]
        for reading in panel["readings"]
    ]
    return headings, rows


def panel_title(panel: dict[str, Any]) -> str:
    """What is judged, and how the target itself does."""
    subject = "all tasks" if panel["task"] == OVERALL else panel["task"]
    own = f"the target alone: {percent(panel['target_quality'])}"
    return f"{subject}, {NAMES.get(panel['measure'], panel['measure'])}; {own}"


def point_table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of every arm over all questions."""
    headings = [
        "arm", "latency", "95% interval", "speed-up a token", "accepted a round", "acceptance",
        "target calls a token", "agreement",
    ]  # fmt: skip
    rows = []
    for point in summary["points"]:
        if point["task"] != OVERALL:
            continue
        figures = point["cell"]
        rows.append(
            [
                point["arm"],
                f"{point['latency']:.3f}",
                interval(point["latency_ci95"]),
                times(figures["speedup_vs_ar"]),
                f"{figures['mean_accepted']:.2f}",
                percent(figures["acceptance_rate"]),
                f"{figures['target_calls_per_token']:.3f}",
                percent(point["quality"].get(AGREEMENT)),
            ]
        )
    return headings, rows


def main_panels(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in summary["panels"] if panel["main"]]


def _reached(latency: float | None) -> str:
    return NOT_REACHED if latency is None else f"{latency:.3f}"


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    settings = summary["settings"]
    yield "# Quality against latency"
    yield ""
    counts = ", ".join(f"{task} {count}" for task, count in summary["tasks"].items())
    yield (
        f"{summary['questions']} questions ({counts}), temperature {settings['temperature']:g}, "
        f"{settings['max_new_tokens']} new tokens."
    )
    for panel in main_panels(summary):
        yield from ("", f"## {panel_title(panel)}", "", *table_lines(*panel_table(panel)))
    yield from ("", "## Every point, over all questions", "", *table_lines(*point_table(summary)))
    if summary["errors"]:
        yield ""
        yield f"{len(summary['errors'])} answers failed and are left out; see tradeoff.json."
    yield ""
    yield (
        "Latency: wall seconds of the answers, prefill included, over those of the target alone on "
        "the same questions, measured side by side. Between two swept numbers the curve is a "
        "straight line. Agreement: ROUGE-L. A lossless arm that does not agree wholly at "
        "temperature 0 met near-ties that low precision rounds the other way; float32 has none."
    )
    hardware = summary.get("hardware")
    if hardware:
        yield ""
        yield "Measured on " + ", ".join(f"{k} {v}" for k, v in hardware.items() if v) + "."
