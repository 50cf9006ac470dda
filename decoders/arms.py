"""Arms: a name and a recipe, declared in YAML, checked all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from .errors import DraftpickError, NoSuchName
from .recipes import ArmRecipe, recipe
from .recipes.base import Strict

SHIPPED_ARMS = Path(__file__).parent / "arms.yaml"
AUTOREGRESSIVE = "autoregressive"


class _ArmsFile(Strict):
    arms: dict[str, Any]


def load_arms(path: Path | None = None) -> dict[str, ArmRecipe]:
    """Arms of a YAML file (None: those that ship), in its order; autoregressive is always among
    them. Raises DraftpickError naming every mistake with the path of its field."""
    path = path or SHIPPED_ARMS
    return arms_of(read_mapping(path, "arms"), path)


def read_mapping(path: Path, needed: str) -> dict[str, Any]:
    """A YAML file's mapping. Raises DraftpickError where it holds none, asking for `needed:`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DraftpickError(f"cannot read the {needed} file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DraftpickError(f"{path} is not UTF-8 text: {error.reason}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DraftpickError(f"{path} is not YAML: {str(error).replace(chr(10), ' ')}") from error
    if not isinstance(document, dict):
        raise DraftpickError(f"{path} is empty or no mapping; it needs a top-level `{needed}:`")
    return document


def arms_of(document: dict[str, Any], path: Path) -> dict[str, ArmRecipe]:
    """As `load_arms`, for what the file at `path` held."""
    mistakes: list[str] = []
    arms: dict[str, ArmRecipe] = {}
    try:
        declared = _ArmsFile.model_validate(document).arms
    except ValidationError as error:
        mistakes += sentences("", error)
        body = document.get("arms")
        declared = body if isinstance(body, dict) else {}
    for name, body in declared.items():
        body = body if isinstance(body, dict) else {"kind": body}
        try:
            arms[str(name)] = recipe(**{"name": str(name), "kind": None, **body})
        except ValidationError as error:
            mistakes += sentences(f"arms.{name}", error)
        except ValueError as error:
            mistakes.append(f"arms.{name}.{error}")
    if mistakes:
        raise DraftpickError(f"{path}: {len(mistakes)} mistake(s): " + "; ".join(mistakes))
    if AUTOREGRESSIVE not in arms:
        arms = {AUTOREGRESSIVE: recipe(name=AUTOREGRESSIVE, kind=AUTOREGRESSIVE), **arms}
    return arms


def choose(arms: dict[str, ArmRecipe], names: list[str] | None) -> dict[str, ArmRecipe]:
    """The named arms in the order of `arms`, or all; raises NoSuchName."""
    if not names:
        return arms
    for name in names:
        if name not in arms:
            raise NoSuchName("arm", name, list(arms))
    return {name: arm for name, arm in arms.items() if name in names}


def sentences(at: str, error: ValidationError) -> list[str]:
    """A sentence for each mistake, led by the path of its field under `at`."""
    lines = []
    for detail in error.errors(include_url=False):
        where = ".".join([*([at] if at else []), *(str(part) for part in detail["loc"])])
        lines.append(f"{where}: {detail['msg'].removeprefix('Value error, ')}")
    return lines
