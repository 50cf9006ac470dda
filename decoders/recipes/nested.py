"""Recipes inside a recipe: the drafters that a cascade is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from .base import DraftingRecipe, LengthRecipe
from .mistakes import explained


def _nested(body: Any) -> Any:
    """A mapping with `kind:`, of any kind that drafts. Its mistakes become one sentence."""
    from .kinds import fields_of, recipe_of

    if isinstance(body, DraftingRecipe):
        return body
    if not isinstance(body, dict) or "kind" not in body:
        raise ValueError(
            "give a mapping with a `kind:`, for instance {kind: neural, drafter: draft-general}"
        )
    try:
        made = recipe_of(body)
    except ValidationError as error:
        lines = [f"{p}: {s}" if p else s for p, s in explained(error, fields_of(body["kind"]))]
        raise ValueError("; ".join(lines)) from error
    if not isinstance(made, DraftingRecipe):
        raise ValueError(f"kind: {made.kind!r} cannot draft for another model")
    if made.branches:
        field = type(made).model_fields.get("branch")
        if field is not None and not field.is_required():
            raise ValueError("branch: leave it out; only the target verifies a tree")
        raise ValueError(
            f"kind: {made.kind!r} is for the target's verification alone; give a kind that drafts "
            "one token after another, such as `neural`"
        )
    if "verifier" in made.model_fields_set:
        raise ValueError("verifier: leave it out; only the target's verification has one to choose")
    if "context_to" in made.model_fields_set:
        raise ValueError("context_to: give it to the arm as a whole")
    return made


Nested = Annotated[SerializeAsAny[DraftingRecipe], BeforeValidator(_nested)]


def require_verifiable(where: str, inner: DraftingRecipe, length: LengthRecipe) -> None:
    """For a drafter that another draft model verifies, which drafts so many tokens itself. Raises
    ValueError."""
    if inner.on_target:
        raise ValueError(
            f"{where}: an early exit runs on the target's own layers and cannot draft for another "
            "model; put it into a horizontal cascade"
        )
    refuse_by_cost(where, inner)
    if length.min_confidence:
        raise ValueError(
            "length.min_confidence: what a model has verified it does not doubt again; set it on "
            f"`{where}`"
        )


def refuse_by_cost(where: str, inner: DraftingRecipe) -> None:
    """For a drafter that another draft model verifies. Raises ValueError."""
    if getattr(inner, "by_cost", False):
        raise ValueError(
            f"{where}: `by_cost` goes by the target's passes, but a smaller model verifies this "
            "draft; give `stop_below`"
        )


def words(inner: DraftingRecipe) -> str:
    """A nested recipe in a few words."""
    return " ".join(filter(None, [inner.kind, getattr(inner, "drafter", None)]))
