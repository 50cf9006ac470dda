"""Figures that are printed as results stand where they are said to, and say how they were made."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import HEADING, ROOT, anchor

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")
UNIT = r"(?=x\b|%| points| tokens/s| times)"
FIGURE = re.compile(rf"(?<![\w.,/-])(?!95%)(\d[\d,]*(?:\.\d+)?){UNIT}")
DECIMAL = re.compile(  # of conclusions: all that has decimals, too, but for sizes and versions
    rf"(?<![\w.,/-])(?!95%)(\d[\d,]*(?:\.\d+)?{UNIT}|\d[\d,]*\.\d+(?![\w.]|,\d| [bm]illion))"
)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")
CONCLUSIONS, MEASURED = "Conclusions", "Measured"


def with_section(title: str) -> list[str]:
    return sorted(
        str(page.relative_to(ROOT))
        for page in (ROOT / "docs").rglob("*.md")
        if f"\n## {title}\n" in page.read_text(encoding="utf-8")
    )


CONCLUDED = with_section(CONCLUSIONS)
METHODS = "docs/notes/methods_measured.md"
SAID = (  # page, and the section whose figures are to be found; None for all of it
    ("README.md", None),
    ("docs/your-own-model.md", None),
    ("docs/which_arm.md", "What decides"),
    ("docs/gpu/README.md", "The figures in short"),
    (METHODS, "What the papers claim, and what these models show"),
    *((name, CONCLUSIONS) for name in CONCLUDED),
    *((name, MEASURED) for name in with_section(MEASURED)),
)
COMMAND = r"^```bash$|`(make|draftpick|python) |`benchmarks/\w+\.(py|sh)`|cannot be run again"
METHOD_PAGES = {f"docs/methods/{name}.md" for name in ("eagle3", "verification")}
TABLES = sorted({*CONCLUDED, *METHOD_PAGES})


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, deeper ones included. above: those that it is in."""

    level: int
    title: str
    text: str
    own: str
    above: tuple[str, ...]


def sections(page: str) -> list[Section]:
    heads = list(HEADING.finditer(_quiet(page)))
    found: list[Section] = []
    within: list[tuple[int, str]] = []  # the headings that the next one may be below
    for i, head in enumerate(heads):
        level, start = len(head[1]), head.start()
        ends = [h.start() for h in heads[i + 1 :]]
        later = [h.start() for h in heads[i + 1 :] if len(h[1]) <= level]
        own = page[start : ends[0] if ends else None]
        within = [(deep, text) for deep, text in within if deep < level]
        above = tuple(text for _, text in within)
        found.append(Section(level, head[2], page[start : later[0] if later else None], own, above))
        within.append((level, own))
    return found


def _quiet(page: str) -> str:
    """As long, without the comments of code blocks, which look like headings."""
    return re.sub(r"^```.*?^```$", lambda m: re.sub("#", " ", m[0]), page, flags=re.M | re.S)


def section(name: str, anchored: str | None) -> str:
    page = (ROOT / name).read_text(encoding="utf-8")
    if not anchored:
        return page
    return next(one.text for one in sections(page) if anchor(one.title) == anchored)


def blocks(text: str) -> list[str]:
    """Paragraphs, items of lists, and tables together with the paragraph in front of them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found: list[str] = []
    for part in re.split(r"\n\s*\n|\n(?=- )", text):
        if part.lstrip().startswith("|") and found:
            found[-1] += "\n" + part
        elif part.strip():
            found.append(part)
    return found


def sources(name: str, block: str, said: str | None) -> str:
    """What a block links to, and of a page with conclusions all the rest of it: its tables, other
    sections, and of a CSV that it links to the rows of the methods that the block names."""
    here = (ROOT / name).parent
    found = []
    for page, at in LINK.findall(block):
        if page.endswith(".md") or (at and not page):
            there = (here / page).resolve() if page else ROOT / name
            found.append(section(str(there.relative_to(ROOT)), at))
    if said:
        page = (ROOT / name).read_text(encoding="utf-8")
        found += [here / at for at, _ in LINK.findall(page) if at.endswith(".csv")]
        found = [rows_of(one, block) if isinstance(one, Path) else one for one in found]
        found.append("\n".join(line for line in page.splitlines() if line.startswith("|")))
        for other, title in SAID:
            if other == name and title:
                page = page.replace(section(name, anchor(title)), "")
        found.append(page)
    return "\n".join(found)


def rows_of(path: Path, block: str) -> str:
    """Rows of a CSV whose method, without its threshold, stands in a block as code."""
    named = set(re.findall(r"`([^`]+)`", block))
    with path.open(encoding="utf-8", newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)
                if row["method"].partition("@")[0] in named]  # fmt: skip
    return "\n".join(" | ".join(row) for row in rows)


def figures(block: str, said: str | None) -> list[str]:
    """Those that a block says; of a section with tables of its own not those in them."""
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|\bal\., [\d.]+", "]", block)
    if said:
        text = re.sub(r"^\|.*$", "", text, flags=re.M)
    return (DECIMAL if said else FIGURE).findall(text)


def value(number: str) -> float:
    return float(number.replace(",", ""))


def stands(figure: str, text: str) -> bool:
    """Whether a number of the text is the figure when it is rounded as the figure is; or, of a
    share, the hundredth part of it."""
    digits = len(figure.partition(".")[2])
    half = 0.5 * 10**-digits + 1e-9
    found = [abs(value(number)) for number in NUMBER.findall(text)]
    return any(min(abs(n - value(figure)), abs(100 * n - value(figure))) <= half for n in found)


CASES = [
    (name, said, block)
    for name, said in SAID
    for block in blocks(section(name, anchor(said) if said else None))
    if figures(block, said)
]


@pytest.mark.parametrize(
    ("name", "said", "block"), CASES, ids=[f"{n}:{b[:40]}" for n, _, b in CASES]
)
def test_a_figure_is_found_where_it_is_from(name: str, said: str | None, block: str) -> None:
    found = sources(name, block, said)
    missing = [figure for figure in figures(block, said) if not stands(figure, found)]
    assert not missing, f"{name} says {', '.join(missing)}, which stands nowhere that it links to"


def tabled(name: str) -> list[Section]:
    """Sections with a table of figures."""
    page = (ROOT / name).read_text(encoding="utf-8")
    rows = re.compile(r"^\|.*\| \**-?\d+\.\d+\D.*\|$", re.MULTILINE)
    return [one for one in sections(page) if rows.search(one.own)]


@pytest.mark.parametrize(
    ("name", "one"), [(name, one) for name in TABLES for one in tabled(name)],
    ids=[f"{name}:{one.title}" for name in TABLES for one in tabled(name)],
)  # fmt: skip
def test_a_table_names_its_command(name: str, one: Section) -> None:
    """In a block or in a sentence, in its section or one that this is in; tests/test_docs.py parses
    all of them. Or a sentence says that it cannot be run again."""
    said = "\n".join([one.own, *one.above])
    assert re.search(COMMAND, said, re.MULTILINE), one.title


def test_a_figure_that_stands_nowhere_is_caught() -> None:
    assert stands("31", "| 31.2 |") and stands("0.82", "0.82x") and stands("8", "-7.8")
    assert not stands("1.5", "0.6% and 3.7%, 11.5 or 1.56") and not stands("7.1", "v7.1.3 17.1")
    assert stands("57", "| 0.568 |") and not stands("57", "| 0.58 |")
    assert blocks("a 1%\n\n| x |\n| 2% |\n\n- b\n- c") == ["a 1%\n| x |\n| 2% |", "- b", "- c"]


def test_figures_of_a_block_are_those_it_claims() -> None:
    block = "`a@0.1` gives 1.03x at 88% (Lee et al., 3.4), 0.55 instead of 2.13, for 1.2 billion"
    assert figures(block, "Conclusions") == ["1.03", "88", "0.55", "2.13"]
    assert figures(block, None) == ["1.03", "88"]
    assert figures("2.5 times as fast, three times", None) == ["2.5"]
    assert figures("so 2%\n| a | 3.5% |", "Conclusions") == ["2"]


def test_rows_of_a_csv_are_found_by_the_methods_that_are_named() -> None:
    path = (ROOT / METHODS).with_suffix(".csv")
    found = rows_of(path, "`max-gram` and `bild`, not neural")
    assert stands("1.30", found) and "bild@2" in found and "neural" not in found
    assert stands("0.93", rows_of(path, "`neural-3`")) and not rows_of(path, "max-gram")
