"""Pages in one HTML file: no scripts, no links, pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from .specbench import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def page(title: str, body: Iterable[str]) -> str:
    """The whole page. body: its parts, as HTML."""
    inside = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{inside}\n"
        "</body></html>\n"
    )


def table_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells in plain text; one between asterisks is the best."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'


def picture(figure: Figure, words: str) -> str:
    """words: what it shows."""
    data = base64.b64encode(plots.png(figure)).decode()
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{data}">'


def _td(text: str) -> str:
    if text.startswith("**"):
        return f'<td class="best">{escape(text.strip("*"))}</td>'
    return f"<td>{escape(text)}</td>"
