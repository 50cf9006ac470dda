"""The speed-ups of docs/notes/methods_measured.md in one table, as docs/methods.md has it.

    python benchmarks/glance.py docs/notes/methods_measured.md

A row for each method, a column for each kind of table; of the tables of a kind that have a method
the first counts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from router.specbench.markdown import table_lines

TABLE = re.compile(r"[A-Z].*, temperature \d:")  # where a section has several
SECTIONS = {
    "decoder-only, T = 0": ("Temperature 0", "Added later, temperature 0"),
    "T = 1": ("Temperature 1", "Added later, temperature 1"),
} | {
    f"{task.lower()}, T = {t}": (
        f"{task}, temperature {t}",
        f"Early exits: {task}, temperature {t}",
        f"Added later: {task}, temperature {t}",
    )
    for task in ("Translations", "Summaries")
    for t in (0, 1)
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path)
    print("\n".join(glance(parser.parse_args(argv).page.read_text(encoding="utf-8"))))


def glance(page: str) -> list[str]:
    """The table's lines."""
    sections = tables(page)
    columns = {
        heading: {row["method"]: row for name in reversed(names) for row in sections.get(name, [])}
        for heading, names in SECTIONS.items()
    }
    rows = {row["method"]: row for name in sections for row in sections[name]}
    body = [
        [
            method,
            rows[method]["lossless"],
            *[told.get(method, {}).get("speed-up", "-") for told in columns.values()],
        ]
        for method in rows
    ]
    return table_lines(["method", "lossless", *columns], body)


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """By section, the rows of its table of methods."""
    found: dict[str, list[dict[str, str]]] = {}
    heading = section = ""
    headings: list[str] = []
    for line in page.splitlines():
        if line.startswith("#"):
            heading = section = line.strip("# ")
            headings = []
        elif TABLE.fullmatch(line):
            section, headings = f"{heading}: {line[:-1]}", []
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if cells[:2] == ["method", "lossless"]:
            headings = cells
        elif headings and cells and not cells[0].startswith("---"):
            rows = found.setdefault(section, [])
            rows.append(dict(zip(headings, cells, strict=True)))
    return found


if __name__ == "__main__":
    main()
