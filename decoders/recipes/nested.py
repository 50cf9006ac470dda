"""A drafter as a part of an arm: a recipe in a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError, ValidationInfo

from .base import DraftingRecipe


def nested_drafter(value: Any, info: ValidationInfo) -> DraftingRecipe:
    """Validate a mapping with `kind:` as the drafter of the arm that is being read, whose name it
    takes for its messages. What only a whole arm has (`length`, `verifier`) is a mistake in it."""
    from . import recipe

    if isinstance(value, DraftingRecipe):
        return value
    if not isinstance(value, dict) or "kind" not in value:
        raise ValueError(
            "give a mapping with a `kind:`, for instance {kind: neural, drafter: draft-general}"
        )
    for field in ("length", "verifier"):
        if field in value:
            raise ValueError(f"leave out `{field}`: this arm asks its drafter for one token a time")
    try:
        made = recipe(**{**value, "name": info.data.get("name", "")})
    except ValidationError as error:
        raise ValueError("; ".join(map(_sentence, error.errors(include_url=False)))) from error
    if not isinstance(made, DraftingRecipe):
        raise ValueError(f"kind {made.kind!r} does not draft; name a drafter, for instance neural")
    return made


def _sentence(detail: Any) -> str:
    where = ".".join(map(str, detail["loc"]))
    message = detail["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
