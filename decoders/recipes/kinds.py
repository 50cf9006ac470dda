"""Kinds of arm by name: what an entry of an arms file may say, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..common.plugins import if_missing, watched
from .base import ArmRecipe

KINDS: dict[str, type[ArmRecipe]] = {}
ENGINES: dict[str, Callable[[Any, Sequence[str]], Any]] = watched("engine", {})
"""By kind of remote arm: from EngineOptions and names of arms, none for all, to their engine."""


def recipe(*, kind: str, **fields: Any) -> ArmRecipe:
    """A recipe of that kind. Raises ValueError where the kind is unknown, pydantic's
    ValidationError (a ValueError too) where a field is wrong."""
    return recipe_of({"kind": kind, **fields})


def recipe_of(body: Mapping[Any, Any]) -> ArmRecipe:
    """The same for what a YAML file says, whose keys may be anything."""
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        problem = "is missing" if kind is None else f"{kind!r} is not known"
        raise ValueError(f"kind: {problem}; give one of {', '.join(KINDS)}{if_missing()}")
    return KINDS[kind].model_validate(body)


def fields_of(kind: str) -> list[str]:
    """What an entry of that kind may say."""
    return [name for name in KINDS[kind].model_fields if name != "name"]
