"""`draftpick arms --kinds`: what an arm's entry in a YAML file may say."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from rich.table import Table


def kinds_json() -> list[dict[str, Any]]:
    """One object for each kind of arm, each kind of `length` and each rule of `verifier`: entry,
    what it is, and its fields with their defaults; a field without one has to be given."""
    from decoders import arms
    from decoders.arms import KINDS, LENGTHS, RULES
    from decoders.arms.strict import Strict

    general = (
        Strict, arms.ArmRecipe, arms.DraftingRecipe, arms.LengthRecipe, arms.VerifierRecipe
    )  # fmt: skip
    entries = [_entry(f"kind: {kind}", recipe, general) for kind, recipe in KINDS.items()]
    for kind, length in LENGTHS.items():
        entries.append(_entry(f"length: {{kind: {kind}}}", length, general))
    for rule in dict.fromkeys(RULES.values()):
        names = " | ".join(name for name, one in RULES.items() if one is rule)
        entries.append(_entry(f"verifier: {{rule: {names}}}", rule, general))
    return entries


def kinds_table() -> Table:
    """The same for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="What an arm may be", show_lines=True)
    for heading in ("entry", "fields (a default after =)", "what it is"):
        table.add_column(heading, overflow="fold")
    for entry in kinds_json():
        fields = ", ".join(_fields(entry["fields"]))
        table.add_row(*(escape(words) for words in (entry["entry"], fields, entry["what"])))
    return table


def _entry(entry: str, recipe: type[BaseModel], general: tuple[type, ...]) -> dict[str, Any]:
    """general: classes whose words say nothing of this entry."""
    described = [base for base in reversed(recipe.__mro__) if base.__module__ == recipe.__module__]
    described += [base for base in reversed(recipe.__mro__) if base not in described]
    own = [
        base
        for base in described
        if issubclass(base, general[0]) and (base is recipe or base not in general)
    ]
    words = [inspect.cleandoc(base.__doc__) for base in own if base.__doc__]
    fields = {
        name: {}
        if field.is_required()
        else {"default": _plain(field.get_default(call_default_factory=True))}
        for name, field in recipe.model_fields.items()
        if name not in ("name", "kind", "rule", "note")
    }
    return {"entry": entry, "what": " ".join(" ".join(words).split()), "fields": fields}


def _fields(fields: dict[str, dict[str, Any]]) -> list[str]:
    """As words; `length` and `verifier` have entries of their own."""
    from .arms_view import describe

    return [
        f"{name}={describe(how['default']) or '[]'}"
        if "default" in how and name not in ("length", "verifier")
        else name
        for name, how in fields.items()
    ]


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
