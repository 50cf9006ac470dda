"""What pydantic finds wrong with an entry, in the file's words; and what an arm's models do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..common.errors import Damaged, DraftpickError

if TYPE_CHECKING:
    from ..protocols import Backend, TreeBackend

Place = tuple[int | str, ...]
SAID = {"extra_forbidden": "there is no such field", "model_type": "give a mapping"}


def explained(error: ValidationError, fields: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """For each mistake the path of its field, "" for the whole, and what is wrong.

    fields: those that exist, to be named where one is misspelt.
    """
    details = error.errors(include_url=False)
    places: list[Place] = [detail["loc"] for detail in details]
    for detail, place in zip(details, places, strict=True):
        if place[-1:] == ("str",):  # of a name or a mapping, the name that it is not
            continue
        within = [other for other in places if other != place and other[: len(place)] == place]
        if detail["type"] == "too_short" and within:  # without the items that are wrong
            continue
        words = _words(dict(detail))
        if detail["type"] == "extra_forbidden" and len(place) == 1 and fields:
            words += f"; there are {', '.join(sorted(fields))}"
        yield _path(place), words


def _path(place: Place) -> str:
    """The path without the parts that pydantic adds for the members of a union."""
    return ".".join(str(part) for part in place if "[" not in str(part))


def _words(detail: dict[str, Any]) -> str:
    kind, given = detail["type"], detail["input"]
    if kind in SAID:
        return SAID[kind]
    words = str(detail["msg"]).removeprefix("Value error, ")
    shown = kind not in ("missing", "value_error") and isinstance(given, str | int | float)
    return f"{words}, not {given!r}" if shown else words


@contextmanager
def naming(arm: str) -> Iterator[None]:
    """Puts the arm's name before a mistake that has none. A damaged file names itself."""
    try:
        yield
    except Damaged:
        raise
    except (DraftpickError, ValueError) as error:
        words = str(error)
        said = words if words.startswith("arm ") else f"arm {arm!r}: {words}"
        raise DraftpickError(said) from error


def require_trees(arm: str, backend: Backend, role: str) -> TreeBackend:
    """The same backend, known to read trees.

    role: what it is to the arm, for the sentence that is raised (DraftpickError) where it cannot.
    """
    from ..protocols import TreeBackend

    cannot = "its backend has no tree masks"
    if isinstance(backend, TreeBackend):
        if backend.trees_unsupported_reason is None:
            return backend
        cannot = backend.trees_unsupported_reason
    raise DraftpickError(
        f"arm {arm!r} needs {role} that can read a tree of drafts in one pass, which this one "
        f"cannot ({cannot}); choose another arm"
    )
