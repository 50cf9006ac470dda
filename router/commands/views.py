"""What commands print: the rows of their tables, and their JSON."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.common.terminal import tables, texts

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Table

    from decoders.arms import ArmRecipe
    from decoders.options import EngineOptions
    from policies.ope.estimators import Estimate

    from ..logs.judge import Judgement

FIELDS = ("kind", "drafter", "length", "verifier", "settings", "lossless", "note")


# -- arms and models -------------------------------------------------------------------------------


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


def models_json() -> list[dict[str, Any]]:
    """One object a model, with the fields of decoders' ModelCard."""
    from decoders.zoo import catalogue

    return [asdict(card) for card in catalogue()]


def models_tables(width: int) -> list[Table]:
    """Figures, then words; acceptance as the mean over tasks, and the range."""
    cards = models_json()
    figures = [
        [
            card["name"],
            millions(card["parameters"]),
            megabytes(card["size_bytes"]),
            describe(card["on_disk"]),
            acceptance(card["acceptance"]),
        ]
        for card in cards
    ]
    headings = ["model", "parameters", "size", "on disk", "acceptance"]
    title = "Models (one that is not on disk is fetched on first use)"
    words = ["model", "kind", "licence", "source", "note"]
    rows = [[card["name"], *(card[field] for field in words[1:])] for card in cards]
    listed = [*tables(title, headings, figures, width), texts("What they are", words, rows)]
    return [*listed, *_cache_tables()]


def _cache_tables() -> list[Table]:
    from decoders.zoo import cached

    rows = [[entry.name, megabytes(entry.size_bytes), entry.what] for entry in cached()]
    title = "In the cache (--clear removes an entry)"
    return [texts(title, ["entry", "size", "what it is"], rows, whole=2)] if rows else []


def millions(parameters: int) -> str:
    return f"{parameters / 1e6:.1f}M" if parameters else "-"


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def acceptance(by_task: dict[str, float]) -> str:
    """`41% (30% to 52%)`, or a dash where nothing was measured."""
    if not by_task:
        return "-"
    values = list(by_task.values())
    mean = sum(values) / len(values)
    return f"{mean:.0%} ({min(values):.0%} to {max(values):.0%})"


# -- a log -----------------------------------------------------------------------------------------


def judgement_tables(found: Judgement, width: int) -> list[Table]:
    """Who chose, every arm, and where a policy is judged its estimates."""
    versions = [
        [f"{each.name} {each.policy}", each.choice, str(each.rows), *_figures(each.value)]
        for each in found.versions
    ]
    arms = [
        [each.arm, str(each.taken), str(each.failed), _number(each.mean),
         *(_figures(each.always) if each.always else ["-", "-"]), f"{each.effective:.0f}"]
        for each in found.arms
    ]  # fmt: skip
    made = [
        *tables(
            f"Who chose: {found.reward}",
            ["policy", "choice", "rows", "mean", "95% interval"],
            versions,
            width,
        ),
        *tables(
            f"Arms: {found.reward}",
            [
                "arm",
                "taken",
                "failed",
                "mean when taken",
                "always",
                "95% interval",
                "effective rows",
            ],
            arms,
            width,
        ),
    ]
    for way, each in found.comparisons.items():
        rows = [["logged", *_figures(each.logged), "", "", str(each.rows)]] + [
            [name, *_figures(value), *_figures(each.gains[name], sign="+"),
             "-" if name == "dm" else f"{each.effective:.0f}"]
            for name, value in each.values.items()
        ]  # fmt: skip
        made += tables(
            f"Policy {found.policy} ({way}): {found.reward}",
            ["estimator", "value", "95% interval", "gain", "95% interval", "effective rows"],
            rows,
            width,
        )
    return made


def judgement_lines(found: Judgement) -> list[str]:
    """What was counted and what was not, then the warnings."""
    left = [f"  {many} left out: {why}" for why, many in found.excluded.items()]
    return [
        f"{found.used} of {found.rows} decisions count",
        *left,
        *(f"warning: {words}" for words in found.warnings),
    ]


def plain(value: Any) -> Any:
    """What JSON can hold of a record, a dict or a list; a number that is none is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figures(found: Estimate, sign: str = "") -> list[str]:
    """Value and interval."""
    low, high = _number(found.low, sign), _number(found.high, sign)
    return [_number(found.value, sign), "-" if low == high == "-" else f"{low} to {high}"]


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:{sign}.4g}"
