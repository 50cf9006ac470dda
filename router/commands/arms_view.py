"""`draftpick arms`: each arm's recipe, and whether it is lossless."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from decoders.arms import ArmRecipe

FIELDS = ("kind", "drafter", "length", "verifier", "settings", "lossless", "note")


def arms_json(path: Path | None = None) -> list[dict[str, Any]]:
    """One object for each arm: name and FIELDS; `settings` are what the recipe sets beside them.

    Raises DraftpickError with every mistake in the file."""
    from decoders.arms import load_arms

    return [
        {"name": name, **{field: _plain(getattr(recipe, field, None)) for field in FIELDS}}
        | {"settings": _settings(recipe)}
        for name, recipe in load_arms(path).items()
    ]


def arms_table(path: Path | None = None) -> Table:
    """The same for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Arms")
    for heading in ("arm", "kind", "lossless"):
        table.add_column(heading, no_wrap=True)
    table.add_column("how")
    for arm in arms_json(path):
        how = "; ".join(
            f"{'draft length' if field == 'length' else field}: {describe(arm[field])}"
            for field in ("drafter", "length", "verifier", "settings")
            if arm[field] not in (None, "lossless")
        )
        words = "\n".join(part for part in (arm["note"], how) if part)
        table.add_row(arm["name"], arm["kind"], describe(arm["lossless"]), escape(words))
    return table


def describe(value: Any) -> str:
    """A field in a few words: nested settings become `name=value` pairs."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}={describe(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(f"[{describe(v)}]" if isinstance(v, list) else describe(v) for v in value)
    return str(value)


def _settings(recipe: ArmRecipe) -> dict[str, Any] | None:
    """Numbers and words of its own; drafters and lengths have columns of their own."""
    models = describe(_plain(getattr(recipe, "drafter", None)))
    given = recipe.model_dump(mode="json", exclude_unset=True, exclude={"name", *FIELDS})
    own = {
        name: value
        for name, value in given.items()
        if isinstance(value, int | float)
        or ("kind=" not in describe(value) and describe(value) not in models)
    }
    return own or None


def _plain(value: Any) -> Any:
    """What JSON can hold: pydantic models as dicts, an arm's part by what its entry says of it."""
    from decoders.arms import ArmRecipe

    if isinstance(value, ArmRecipe):
        return value.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value) if isinstance(value, Path) else value
