"""The picture of a run, and one HTML file with everything that it showed, the picture inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from collect.lines import reading
from collect.queries import OVERALL
from decoders.common.errors import DraftpickError
from decoders.common.files import check_file, write_atomically
from decoders.common.text import from_json

from . import markdown
from .records import BASELINE, ROUTED

STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5c6b7a; --line: #dfe5ec; --blue: #2f6db5 }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem; color: var(--ink); background: #fff;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
h1 { font-size: 1.7rem; margin: .2rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 .6rem }
p, li { max-width: 46rem } .soft { color: var(--soft); font-size: .92rem }
.cards { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)) }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem }
.card b { display: block; font-size: 1.5rem; color: var(--blue) }
.scroll { overflow-x: auto } img { max-width: 100%; height: auto }
table { border-collapse: collapse; font-size: .9rem; white-space: nowrap }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right }
th:first-child, td:first-child { text-align: left } th { color: var(--soft); font-weight: 600 }
td.best { font-weight: 700; color: var(--blue) }
"""


def write_report(specbench: Path, out: Path | None = None) -> Path:
    """Write the report of a specbench folder, by default as report.html inside it.

    Raises DraftpickError for a file that is missing or holds something else.
    """
    target = out or specbench / "report.html"
    path = specbench / "summary.json"
    try:
        with reading(path, check="run `draftpick specbench` first"):
            summary = from_json(path.read_text(encoding="utf-8"))
    except ValueError:
        summary = None
    if not isinstance(summary, dict) or "arms" not in summary or "best_fixed" not in summary:
        raise DraftpickError(f"{path} is not a specbench summary")
    check_file(target, "--out")
    write_atomically(target, render(summary))
    return target


def render(summary: dict[str, Any]) -> str:
    """The whole page as a string."""
    inside = "\n".join(_body(summary))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>draftpick report</title><style>{STYLE}</style></head>\n<body>\n{inside}\n"
        "</body></html>\n"
    )


def _body(summary: dict[str, Any]) -> Iterator[str]:
    counts = ", ".join(f"{task} {count}" for task, count in summary["tasks"].items())
    yield "<h1>draftpick</h1>"
    yield f'<p class="soft">{escape(str(summary.get("target", "")))} on {summary["questions"]} '
    yield f"questions ({escape(counts)}); {escape(str(summary.get('written', '')))}</p>"
    yield _cards(summary)
    yield "<ul>" + "".join(f"<li>{escape(s)}</li>" for s in markdown.headline(summary)) + "</ul>"
    picture = base64.b64encode(speedups(summary)).decode()
    yield "<h2>Speed-up by task and arm</h2>"
    yield f'<img alt="Speed-up by task and arm" src="data:image/png;base64,{picture}">'
    for one in (*markdown.sections(summary), markdown.share_table(summary)):
        yield f"<h2>{escape(one.title)}</h2>{table_of(one.headings, one.rows)}"
    yield from _how(summary)


def _cards(summary: dict[str, Any]) -> str:
    best, routed = summary["best_fixed"], summary["routed"]
    overall = None if routed is None else routed["overall"]
    oracle = summary["oracle"]["overall"]
    cards = []
    if overall is not None:
        cards.append((markdown.times(overall["speedup_vs_ar"]), "routed, over autoregressive"))
        cards.append((f"{overall['tokens_per_s']:.1f}", "tokens a second, routed"))
    if best is not None:
        speed = markdown.times(best["overall"]["speedup_vs_ar"])
        cards.append((speed, f"best fixed arm: {best['arm']}"))
    if oracle is not None:
        cards.append((markdown.times(oracle["speedup_vs_ar"]), "oracle (optimistic)"))
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b>{escape(label)}</div>' for value, label in cards
    )
    return f'<div class="cards">{inside}</div>'


def _how(summary: dict[str, Any]) -> Iterator[str]:
    yield "<h2>How it was measured</h2>"
    yield (
        '<p class="soft">Every question went through every method, in random order, one at a time, '
        "after a warm-up. Speed-up is tokens a second over the autoregressive arm's on the same "
        "questions; tokens are ids, the end-of-sequence token included; seconds include the "
        "prefill and, for the routed row, embedding and policy. Intervals are 95% bootstrap "
        "intervals over questions. An answer repeats when it ends in an n-gram repeated three "
        "times or more. Quality is ROUGE-L (summaries, questions, retrieval), BLEU (translation) "
        "or the final number (mathematics), from 0 to 100%.</p>"
    )
    facts = {
        **(summary.get("hardware") or {}),
        **(summary.get("versions") or {}),
        "arms": summary.get("arms_fingerprint"),
        **(summary.get("settings") or {}),
    }
    rows = [[name, str(value)] for name, value in facts.items() if value is not None]
    yield table_of(["", ""], rows)


def table_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells in plain text; one between asterisks is the best."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _td(text: str) -> str:
    if text.startswith("**"):
        return f'<td class="best">{escape(text.strip("*"))}</td>'
    return f"<td>{escape(text)}</td>"


def speedups(summary: dict[str, Any]) -> bytes:
    """A PNG of grouped bars: the speed-up of every arm and of the routed decode on every task."""
    # A bare Figure draws without pyplot, so without a display and without global state.
    from matplotlib.figure import Figure

    tasks = [*summary["tasks"], OVERALL]
    figure = Figure(figsize=(max(7.0, 1.6 * len(tasks)), 4.0), layout="constrained")
    axes = figure.add_subplot()
    rows = {n: c for n, c in markdown.methods_of(summary).items() if n not in (BASELINE, "oracle")}
    room = 0.84  # of a group of bars, in units of the axis
    width = room / max(len(rows), 1)
    for i, (name, cells) in enumerate(rows.items()):
        left = np.arange(len(tasks)) - room / 2 + width * (i + 0.5)
        heights, errors = _bars(cells, tasks)
        color = "black" if name == ROUTED else f"C{i % 10}"
        axes.bar(left, heights, width, yerr=errors, label=name, color=color, error_kw={"lw": 0.7})
    axes.axhline(1.0, color="grey", lw=0.8, ls="--")
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("times autoregressive")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=3, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axes.set_title("Speed-up over autoregressive decoding, with 95% intervals")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


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
