"""Packages of others: written, put on the path, and forgotten."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import collect
import decoders
import policies
from decoders.common import plugins
from router import COMMANDS
from router.specbench.quality import MEASURES

CONTRIBUTING = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"
MODULE = re.compile(r"^```python\n# (my_parts/\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def install(folder: Path, name: str, source: str, entries: str = "") -> None:
    """A distribution of one module as pip leaves it; entries: lines of its entry-point group."""
    (folder / f"{name}.py").write_text(dedent(source))
    if entries:
        write_entries(folder, name, entries)


def write_entries(folder: Path, name: str, entries: str) -> None:
    """The metadata of a distribution with these lines in its entry-point group."""
    about = folder / f"{name}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[draftpick]\n{dedent(entries)}\n")


def write_my_parts(folder: Path) -> None:
    """The package that CONTRIBUTING.md writes, module by module."""
    for path, source in MODULE.findall(CONTRIBUTING.read_text(encoding="utf-8")):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(source)


@contextmanager
def registered(name: str) -> Iterator[SimpleNamespace]:
    """One module of that package, by itself; what it registers is forgotten afterwards."""
    source = dict(MODULE.findall(CONTRIBUTING.read_text(encoding="utf-8")))[f"my_parts/{name}.py"]
    module: dict[str, Any] = {"__name__": f"my_parts.{name}"}
    with forgotten(CONTRIBUTING):
        exec(compile(source, f"my_parts/{name}.py", "exec"), module)
        yield SimpleNamespace(**module)


def part(name: str) -> SimpleNamespace:
    """The same for its classes alone: contract suites run over them as over ours."""
    with registered(name) as module:
        return module


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Afterwards nothing is known of what was imported from `folder` meanwhile."""
    assert decoders.KINDS and decoders.BACKENDS and policies.KINDS  # all dicts are there
    assert collect.ADAPTERS
    assert collect.REWARDS and collect.EMBEDDERS and collect.FEATURES and MEASURES and COMMANDS
    modules, imported = set(sys.modules), set(plugins._imported)
    before = {what: (dict(s.parts), dict(s.owners)) for what, s in plugins._watched.items()}
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
    plugins._imported.intersection_update(imported)
    for what, (parts, owners) in before.items():
        seen = plugins._watched[what]
        seen.parts.clear()
        seen.parts.update(parts)
        seen.owners = owners


def installed_with(requirements: list[str]) -> set[str]:
    """The distributions that these bring, and those that they need in turn."""
    found, open_ = set[str](), [(Requirement(each), ("",)) for each in requirements]
    while open_:
        one, extras = open_.pop()
        name, marker = canonicalize_name(one.name), one.marker
        asked = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if asked and name not in found and name != "draftpick":
            found.add(name)
            more = metadata.distribution(name).requires or ()
            open_ += [(Requirement(each), ("", *one.extras)) for each in more]
    return found
