"""Lay out the pages of the documentation site in build/pages, as they lie in the repository, so
that links stay as they are. Files of the sources that pages name go along; folders lose the link.

List the versions that build/site holds, for the site's own menu, and open the newest there.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
OUT, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
NEWEST = '<!doctype html><meta http-equiv="refresh" content="0; url={}/">'
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
PACKAGES = ("decoders", "collect", "policies", "router")


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    names = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    for page in [*names, *(ROOT / "docs").rglob("*.md")]:
        _lay_out(page)
    for package in PACKAGES:
        options = "    options:\n      show_root_heading: true\n      heading_level: 2\n"
        place = OUT / "api" / f"{package}.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"# {package}\n\n::: {package}\n{options}", encoding="utf-8")
    _list_versions()


def _list_versions() -> None:
    """By folder: mkdocs builds this one's next, and leaves the others."""
    here = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (SITE / here["version"]).mkdir(parents=True, exist_ok=True)
    found = sorted((each.name for each in SITE.iterdir() if each.is_dir()), key=Version)[::-1]
    told = [{"version": name, "title": name, "aliases": []} for name in found]
    (SITE / "versions.json").write_text(json.dumps(told), encoding="utf-8")
    (SITE / "index.html").write_text(NEWEST.format(found[0]), encoding="utf-8")


def _lay_out(page: Path) -> None:
    def kept(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if target.is_dir():
            return found[1]
        if target.suffix != ".md" and target.is_file():
            _copy(target)
        return found[0]

    place = OUT / page.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(LINK.sub(kept, page.read_text(encoding="utf-8")), encoding="utf-8")


def _copy(file: Path) -> None:
    place = OUT / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


main()
