"""Parts that other packages bring.

A package names its modules in the entry-point group `draftpick`, or an arms file names them under
`plugins:`. Each is imported once, and importing it is enough: it puts its parts into the plain
dicts that are open to them, such as `decoders.KINDS` or `collect.REWARDS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from .errors import DraftpickError
from .wording import in_words

GROUP = "draftpick"
DRAFTPICK_ITSELF = "draftpick itself"

Part = TypeVar("Part")


@dataclass
class _Watched:
    """A dict that is open to others.

    parts: the dict itself.
    known: what it held when a plugin was last imported.
    owners: who put a part there.
    """

    parts: dict[str, Any]
    known: dict[str, Any] = field(init=False)
    owners: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.known, self.owners = dict(self.parts), dict.fromkeys(self.parts, DRAFTPICK_ITSELF)


_watched: dict[str, _Watched] = {}
_imported: set[str] = set()


def watched(what: str, parts: dict[str, Part]) -> dict[str, Part]:
    """The same dict, of which from now on no plugin may replace a part.

    what: what each part is called in a sentence.
    """
    _watched[what] = _Watched(parts)
    return parts


def load(package: str = "") -> None:
    """Import every module of the entry-point group that was not imported by an earlier call.

    package: fetches those of the group `draftpick.PACKAGE` too. They fill that package's dicts, for
        which they import it, so commands that do without it leave them alone.

    Raises DraftpickError where one cannot be imported or brings a part whose name is taken.
    """
    for group in (GROUP, f"{GROUP}.{package}") if package else (GROUP,):
        entries = entry_points(group=group)
        for entry in sorted(entries, key=lambda one: (not _is_ours(one), one.name, one.value)):
            _import(entry.module, DRAFTPICK_ITSELF if _is_ours(entry) else _words(entry))


def load_named(modules: Iterable[str], path: Path) -> None:
    """The same for the modules that the file at `path` names."""
    for module in modules:
        _import(module, f"the plugin {module!r} that {path} names")


def if_missing() -> str:
    """What to do about an unknown part where draftpick's own plugins are not installed, as in a
    checkout on PYTHONPATH; "" where they are."""
    if any(map(_is_ours, entry_points(group=GROUP))):
        return ""
    return "; plugins of draftpick bring more: pip install it, or name their modules as `plugins:`"


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "draftpick"


def _words(entry: EntryPoint) -> str:
    """The plugin, and the distribution to mend or uninstall."""
    source = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"the plugin {entry.name!r}{source}"


def _import(module: str, who: str) -> None:
    if module in _imported:
        return
    for seen in _watched.values():
        seen.known = dict(seen.parts)
    try:
        import_module(module)
    except Exception as error:  # whatever its code raises
        _take_back()
        raise DraftpickError(f"{who} cannot be imported: {_cause(module, error)}") from error
    try:
        _take_in(who)
    except DraftpickError:
        _take_back()
        sys.modules.pop(module, None)  # so that the next attempt says the same
        raise
    _imported.add(module)


def _cause(module: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {module!r}; install it, or add its folder to PYTHONPATH"
    return f"{in_words(error)}; mend its package or uninstall it"


def _take_in(who: str) -> None:
    """Note whose the new parts are. Raises DraftpickError where one took the place of another."""
    for what, seen in _watched.items():
        for name, part in seen.parts.items():
            if name not in seen.known:
                seen.owners[name] = who
            elif part is not seen.known[name]:
                first = seen.owners.get(name, "this program")
                raise DraftpickError(
                    f"the {what} {name!r} comes twice, from {first} and from {who}; rename one of "
                    "the two or uninstall its package"
                )


def _take_back() -> None:
    for seen in _watched.values():
        seen.parts.clear()
        seen.parts.update(seen.known)
