"""`draftpick arms`: the arms, and what an arms file can hold."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError
from decoders.common.terminal import show, texts
from decoders.options import EngineOptions

from ..tabulated import print_json
from .options import AsJson, Config, Target

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Table

    from decoders.arms import ArmRecipe

FIELDS = ("kind", "drafter", "length", "verifier", "settings", "lossless", "note")


def arms(
    config: Config = None,
    target: Target = EngineOptions.target,
    kinds: Annotated[
        bool,
        typer.Option("--kinds", help="List what an arms file can hold: kinds and their fields."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the arms, their recipes, and whether they are lossless.

    \b
    Examples:
      draftpick arms
      draftpick arms --config arms.yaml
      draftpick arms --target qwen2.5-coder-1.5b-instruct
      draftpick arms --kinds
    """
    from decoders.arms.file import own_arms
    from decoders.zoo.catalogue import TARGET

    listed = EngineOptions(target, config)
    if config is None and target != TARGET and listed.made_for is None:
        raise DraftpickError(
            f"--target {target}: no arms ship for it; give a model for which some do "
            f"({', '.join([TARGET, *own_arms()])}), or declare arms in a file for --config"
        )
    if as_json:
        print_json(kinds_json() if kinds else arms_json(listed))
    else:
        show(lambda width: [kinds_table() if kinds else arms_table(listed)])


def arms_json(options: EngineOptions) -> list[dict[str, Any]]:
    """One object for each of the options' arms: name and FIELDS; `settings` are what the recipe
    sets besides them.

    Raises DraftpickError with every mistake in the file.
    """
    return [
        {"name": name, **{field: _plain(getattr(recipe, field, None)) for field in FIELDS}}
        | {"settings": _settings(recipe)}
        for name, recipe in options.recipes().items()
    ]


def arms_table(options: EngineOptions) -> Table:
    """Each arm: its note, and what its recipe sets."""
    rows = []
    for arm in arms_json(options):
        how = "; ".join(
            f"{'draft length' if field == 'length' else field}: {describe(arm[field])}"
            for field in ("drafter", "length", "verifier", "settings")
            if arm[field] not in (None, "lossless")
        )
        words = "\n".join(part for part in (arm["note"], how) if part)
        rows.append([arm["name"], arm["kind"], describe(arm["lossless"]), words])
    return texts("Arms", ["arm", "kind", "lossless", "how"], rows, whole=3)


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
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value) if isinstance(value, Path) else value


def kinds_json() -> list[dict[str, Any]]:
    """One object for each kind of arm, each kind of `length` and each rule of `verifier`: entry,
    what it is, and its fields with their defaults; a field without one has to be given."""
    from decoders import arms
    from decoders.arms import KINDS, LENGTHS, RULES
    from decoders.recipes.strict import Strict

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
    """Each entry, its fields and what it is; `length` and `verifier` have entries of their own."""
    rows = []
    for entry in kinds_json():
        fields = [
            f"{name}={describe(how['default']) or '[]'}"
            if "default" in how and name not in ("length", "verifier")
            else name
            for name, how in entry["fields"].items()
        ]
        rows.append([entry["entry"], ", ".join(fields), entry["what"]])
    headings = ["entry", "fields (a default after =)", "what it is"]
    return texts("What an arm may be", headings, rows, whole=0, lines=True)


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
