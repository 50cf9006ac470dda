"""The documentation's pages and the blocks fenced in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


WORD = re.compile(r"`([^`\n]+)`")


HEADING = re.compile(r"^(#+) +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A fenced block. where: page and line of its first line."""

    where: str
    page: Path
    language: str
    text: str


def snippets(*languages: str) -> list[Snippet]:
    found = []
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(content):
            if match[1] in languages:
                line = content.count("\n", 0, match.start()) + 2
                found.append(Snippet(f"{page.relative_to(ROOT)}:{line}", page, match[1], match[2]))
    return found


def named(snippet: Snippet) -> str:
    return snippet.where


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def anchor(title: str) -> str:
    """What a link to a heading ends with."""
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(title) for _, title in HEADING.findall(prose(page))}
