"""The tensors that files hold, compared with those that a model needs, before any of it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from .errors import Damaged
from .files import within

T = TypeVar("T")


def below(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin so, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}


Shape = tuple[int, ...]
NAMED = 3  # of what is wrong, in a message


def header_of(part: Path) -> dict[str, Shape]:
    """Names and shapes in a safetensors file, by its header: its length in eight bytes, then JSON.
    Raises Damaged where the file ends elsewhere than it says."""
    try:
        size = part.stat().st_size
        with part.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, size)))
        kept = {name: each for name, each in header.items() if name != "__metadata__"}
        ends = 8 + length + max((each["data_offsets"][1] for each in kept.values()), default=0)
        shapes = {name: tuple(each["shape"]) for name, each in kept.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        ends, shapes = -1, {}
    if ends != size:
        raise Damaged(f"{part} is cut short or no safetensors file; fetch or save it again")
    return shapes


def own_config(folder: Path, kind: Callable[..., T]) -> T:
    """Read the numbers in `config.json` of a drafter that draftpick trained. Raises Damaged where
    it has others than `kind` takes."""
    path = folder / "config.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        numbers = {name: value for name, value in record.items() if name != "kind"}
        if all(isinstance(value, int | float) for value in numbers.values()):
            return kind(**numbers)
    except (ValueError, TypeError, AttributeError):
        pass
    raise Damaged(f"{path} is no config of such a drafter; fetch or save it again")


def indexed(index: Path) -> list[Path]:
    """The files that an index names. Raises Damaged where one is not there, or the index is no
    index."""
    folder = index.parent
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{index} is no index of weights; fetch or save the model again") from None
    found = sorted(within(folder, name) for name in names)
    absent = [part.name for part in found if not part.is_file()]
    if absent:
        raise Damaged(
            f"{folder} lacks {_listed(absent)}, which its index names; fetch or save the model "
            "again"
        )
    return found


def require(where: Path, held: Mapping[str, Shape], needed: Mapping[str, Shape]) -> None:
    """Raises Damaged where a tensor is not there or has another shape; more may be there."""
    require_all(
        where,
        [name for name in needed if name not in held],
        [(n, held[n], needed[n]) for n in needed if n in held and held[n] != needed[n]],
    )


def require_all(
    where: Path, missing: Iterable[str], other: Iterable[tuple[str, Shape, Shape]]
) -> None:
    """Raises Damaged where there is any.

    missing: names that the files lack.
    other: name, the shape in the files, the shape that the config asks for.
    """
    absent, misshapen = sorted(missing), sorted(other)
    if absent:
        raise Damaged(
            f"{where} lacks {_listed(absent)}, which its config.json asks for; fetch or save the "
            "model again"
        )
    if misshapen:
        words = [f"{name} is {list(has)} and not {list(wants)}" for name, has, wants in misshapen]
        raise Damaged(
            f"{where} holds tensors of other shapes than its config.json asks for: "
            f"{_listed(words)}; fetch or save the model again"
        )


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
