"""The sweep file: arm templates, one field of each replaced by a list of values.

sweep:
  confidence:
    arm: {kind: neural, drafter: draft-general, length: {kind: fixed, k: 8}}
    field: length.min_confidence
    values: [0.0, 0.2, 0.4, 0.6]
arms:                                   # optional: points without a curve
  copying: {kind: max_gram, drafter: bigram}
plugins: [my_module]                    # optional: as in an arms file
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from decoders.arms import ArmRecipe, arms_of
from decoders.arms.file import mistaken, read_mapping, sentences
from decoders.recipes.base import Strict


class _Template(Strict):
    arm: dict[str, Any]
    field: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
    values: Annotated[list[Any], Field(min_length=1)]


class _SweepFile(Strict):
    sweep: Annotated[dict[str, _Template], Field(min_length=1)]
    arms: dict[str, Any] = Field(default_factory=dict)
    plugins: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Curve:
    """A swept template.

    arms: the name of each value's arm, in the order of `values`.
    field: the path of what is swept, "" for a single arm that is not.
    """

    name: str
    field: str
    values: tuple[Any, ...]
    arms: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether something lies between two values: numbers, more than one."""
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)
        return numbers and len(self.values) > 1


@dataclass(frozen=True)
class Sweep:
    """curves: in the file's order, single arms last.
    arms: a recipe for every point, and the autoregressive one.
    plugins: modules that the file names.
    """

    curves: tuple[Curve, ...]
    arms: dict[str, ArmRecipe]
    plugins: tuple[str, ...] = ()


def load_sweep(path: Path) -> Sweep:
    """Read and expand a sweep file. Raises DraftpickError naming every mistake with its path."""
    document = read_mapping(path, "sweep")
    try:
        declared = _SweepFile.model_validate(document)
    except ValidationError as error:
        raise mistaken(path, sentences("", error)) from None
    bodies: dict[str, Any] = dict(declared.arms)
    curves, mistakes = [], []
    for name, template in declared.sweep.items():
        points = {f"{name}@{_short(value)}": value for value in template.values}
        if len(points) < len(template.values):
            mistakes.append(f"sweep.{name}.values: a value is there twice")
        for arm, value in points.items():
            if arm in bodies:
                mistakes.append(f"arms.{arm}: that is a point of the sweep; choose another name")
            try:
                bodies[arm] = with_field(template.arm, template.field, value)
            except ValueError as error:
                mistakes.append(f"sweep.{name}.field: {error}")
                break
        curves.append(Curve(name, template.field, tuple(points.values()), tuple(points)))
    if mistakes:
        raise mistaken(path, mistakes)
    curves += [Curve(name, "", (), (name,)) for name in declared.arms]
    arms = arms_of({"arms": bodies, "plugins": declared.plugins}, path)
    return Sweep(tuple(curves), arms, tuple(declared.plugins))


def arms_yaml(sweep: Sweep) -> str:
    """The points as an arms file, for `--config` of the other commands."""
    bodies = {
        name: recipe.model_dump(mode="json", exclude_unset=True, exclude={"name"})
        for name, recipe in sweep.arms.items()
    }
    plugins = {"plugins": list(sweep.plugins)} if sweep.plugins else {}
    return yaml.safe_dump({**plugins, "arms": bodies}, sort_keys=False)


def with_field(arm: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """A copy of an arm's mapping with the value at a dotted path; mappings on the way are made.

    Raises ValueError where the path runs through something that is no mapping.
    """
    made = copy.deepcopy(arm)
    *way, last = field.split(".")
    at: Any = made
    for depth, part in enumerate(way, 1):
        at = at.setdefault(part, {})
        if not isinstance(at, dict):
            raise ValueError(
                f"`{'.'.join(way[:depth])}` is {at!r} in the arm, no mapping that could hold "
                f"`{field}`; write it there as a mapping"
            )
    at[last] = value
    return made


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
