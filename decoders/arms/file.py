"""Arms: a name and a recipe, declared in YAML, checked all at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from ..common import plugins
from ..common.errors import DraftpickError, NoSuchName
from ..common.wording import in_words
from ..recipes.base import ArmRecipe
from ..recipes.kinds import fields_of, recipe, recipe_of
from ..recipes.mistakes import explained
from ..recipes.model_name import BY_WEIGHTS
from ..recipes.strict import Strict
from ..zoo.catalogue import known_as


def fingerprint(arms: Mapping[str, ArmRecipe]) -> str:
    """Eight hex digits over the arms' names and what identifies them; local models count by their
    weights, wherever they lie."""
    return hashlib.sha256(_written(arms, BY_WEIGHTS).encode()).hexdigest()[:8]


class LoadedFingerprints:
    """Fingerprints of arms that are in use: the files of a recipe's models are read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, arms: Mapping[str, ArmRecipe]) -> str:
        key = _written(arms)
        if key not in self._known:
            self._known[key] = fingerprint(arms)
        return self._known[key]


def _written(arms: Mapping[str, ArmRecipe], context: Any = None) -> str:
    return json.dumps({name: arm.identity(context) for name, arm in arms.items()}, sort_keys=True)


SHIPPED_ARMS = Path(__file__).parent / "arms.yaml"
UNTRAINED_ARMS = Path(__file__).parent / "untrained.yaml"  # for any target
AUTOREGRESSIVE = "autoregressive"
MERGE, TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


class _ArmsFile(Strict):
    arms: dict[str, Any]
    plugins: list[str] = Field(default_factory=list)  # modules that bring parts it uses


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice; YAML's own loader would keep the last. Keys are
    texts: an arm may be called yes, off or 1."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line} gives {key.value!r} a second time")
                seen.add(key.value)
                if key.tag != MERGE:
                    key.tag = TEXT
        return node


def load_arms(path: Path | None = None) -> dict[str, ArmRecipe]:
    """Arms of a YAML file (None: those that ship), in its order; autoregressive is always among
    them, unless all are endpoints, which have no target. The modules that it names under `plugins:`
    are imported first. A drafter that begins with `./` or `../` lies next to the file.

    Raises DraftpickError with every mistake and the path of its field.
    """
    path = path or SHIPPED_ARMS
    return arms_of(read_mapping(path, "arms"), path)


def arms_made_for(target: str) -> Path | None:
    """The file of the arms that ship for a target other than the default one, by its known name or
    by what its GGUF file says of itself; None where there are none. Raises DraftpickError where
    such a file cannot be read."""
    return own_arms().get(known_as(target) or "")


def own_arms() -> dict[str, Path]:
    """Arms files by the known name of a target other than the default one."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    return {file.stem: file for file in files if file not in (SHIPPED_ARMS, UNTRAINED_ARMS)}


def read_mapping(path: Path, needed: str) -> dict[str, Any]:
    """A YAML file's mapping. Raises DraftpickError where it holds none, asking for `needed:`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DraftpickError(f"cannot read the {needed} file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DraftpickError(f"{path} is not UTF-8 text: {error.reason}") from error
    try:
        document = yaml.load(text, _Loader)
    except RecursionError as error:
        raise DraftpickError(f"{path} is nested too deeply; it needs `{needed}:`") from error
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that is none
        raise DraftpickError(f"{path} is not YAML: {in_words(error)}") from error
    if not isinstance(document, dict):
        raise DraftpickError(f"{path} is empty or no mapping; it needs a top-level `{needed}:`")
    return document


def arms_of(document: dict[str, Any], path: Path) -> dict[str, ArmRecipe]:
    """Arms of what the file at `path` held."""
    mistakes: list[str] = []
    arms: dict[str, ArmRecipe] = {}
    try:
        file = _ArmsFile.model_validate(document)
        plugins.load_named(file.plugins, path)
        declared = file.arms
    except ValidationError as error:
        mistakes += sentences("", error)
        body = document.get("arms")
        declared = body if isinstance(body, dict) else {}
    for name, body in declared.items():
        body = body if isinstance(body, dict) else {"kind": body}
        if "name" in body:
            mistakes.append(f"arms.{name}.name: leave it out; the arm is called {name} already")
        try:
            arms[str(name)] = recipe_of(_located(body, path.parent) | {"name": str(name)})
        except ValidationError as error:
            mistakes += sentences(f"arms.{name}", error, fields_of(body["kind"]))
        except ValueError as error:
            mistakes.append(f"arms.{name}.{error}")
    if AUTOREGRESSIVE in arms and arms[AUTOREGRESSIVE].kind != AUTOREGRESSIVE:
        mistakes.append(
            f"arms.{AUTOREGRESSIVE}: by this name plain decoding is known, which the others are "
            "compared with; give the arm another"
        )
    if mistakes:
        raise mistaken(path, mistakes)
    if AUTOREGRESSIVE not in arms and not (arms and all(arm.remote for arm in arms.values())):
        arms = {AUTOREGRESSIVE: recipe(name=AUTOREGRESSIVE, kind=AUTOREGRESSIVE), **arms}
    return arms


def _located(value: Any, folder: Path) -> Any:
    """The same, with models that are named from the file's folder named from here."""
    if isinstance(value, dict):
        return {field: _located(each, folder) for field, each in value.items()}
    if isinstance(value, list):
        return [_located(each, folder) for each in value]
    if isinstance(value, str) and value.startswith(("./", "../")):
        return str(folder / value)
    return value


def choose(arms: dict[str, ArmRecipe], names: list[str] | None) -> dict[str, ArmRecipe]:
    """The named arms in the order of `arms`, or all; raises NoSuchName."""
    if not names:
        return arms
    for name in names:
        if name not in arms:
            raise NoSuchName("arm", name, list(arms))
    return {name: arm for name, arm in arms.items() if name in names}


def remote(arms: Mapping[str, ArmRecipe]) -> bool:
    """Whether these arms answer without a target. Raises DraftpickError where only some do."""
    apart = [name for name, arm in arms.items() if arm.remote]
    if apart and len(apart) < len(arms):
        raise DraftpickError(
            f"{', '.join(apart)} answer without a target, the other arms on one; put endpoints "
            "into an arms file of their own"
        )
    return bool(apart)


def mistaken(path: Path, found: Sequence[str]) -> DraftpickError:
    """To be raised for all mistakes of a file at once."""
    return DraftpickError(f"{path}: {len(found)} mistake(s): {'; '.join(found)}")


def sentences(at: str, error: ValidationError, fields: Sequence[str] = ()) -> list[str]:
    """A sentence for each mistake, which begins with the path of its field under `at`.

    fields: as for `mistakes.explained`.
    """
    return [
        f"{'.'.join(part for part in (at, path) if part)}: {words}"
        for path, words in explained(error, fields)
    ]
