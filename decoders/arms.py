"""Arms: a name and a recipe, declared in YAML, checked all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import DraftpickError, NoSuchName

SHIPPED_ARMS = Path(__file__).parent / "arms.yaml"
AUTOREGRESSIVE = "autoregressive"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LengthRecipe(_Strict):
    """kind fixed: k tokens a round. adaptive: up to k, chosen from the running acceptance rate and
    the measured costs. min_confidence: stop before a token that the drafter gives less."""

    kind: Literal["fixed", "adaptive"] = "fixed"
    k: Annotated[int, Field(ge=1, le=64)] = 4
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0


class ArmRecipe(_Strict):
    """One arm.

    kind: autoregressive, neural (drafter: a shipped name, a folder or a hub id), early_exit
    (drafter: an adapter), max_gram (drafter: a bigram table, or none). shortest, longest, earliest:
    Max-Gram's n-grams and which match it takes.
    """

    name: str
    kind: Literal["autoregressive", "neural", "early_exit", "max_gram"]
    drafter: str | None = None
    length: LengthRecipe = LengthRecipe()
    verifier: Literal["lossless"] = "lossless"
    shortest: Annotated[int, Field(ge=1)] = 2
    longest: Annotated[int, Field(ge=1, le=64)] = 12
    earliest: bool = False
    note: str = ""

    @property
    def lossless(self) -> bool:
        return self.verifier == "lossless"

    @model_validator(mode="after")
    def _fits_its_kind(self) -> ArmRecipe:
        if self.kind in ("neural", "early_exit") and not self.drafter:
            raise ValueError(f"kind {self.kind} needs a `drafter`")
        if self.kind == "autoregressive" and self.drafter:
            raise ValueError("an autoregressive arm has no `drafter`")
        if self.longest < self.shortest:
            raise ValueError("`longest` must not be below `shortest`")
        return self


class _ArmsFile(_Strict):
    arms: dict[str, Any]


def load_arms(path: Path | None = None) -> dict[str, ArmRecipe]:
    """Arms of a YAML file (None: those that ship), in its order; autoregressive is always among
    them. Raises DraftpickError naming every mistake with the path of its field."""
    path = path or SHIPPED_ARMS
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DraftpickError(f"cannot read the arms file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DraftpickError(f"{path} is not UTF-8 text: {error.reason}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DraftpickError(f"{path} is not YAML: {str(error).replace(chr(10), ' ')}") from error
    if not isinstance(document, dict):
        raise DraftpickError(f"{path} is empty or no mapping; it needs a top-level `arms:`")
    mistakes: list[str] = []
    arms: dict[str, ArmRecipe] = {}
    try:
        declared = _ArmsFile.model_validate(document).arms
    except ValidationError as error:
        mistakes += _sentences("", error)
        body = document.get("arms")
        declared = body if isinstance(body, dict) else {}
    for name, body in declared.items():
        body = body if isinstance(body, dict) else {"kind": body}
        try:
            arms[str(name)] = ArmRecipe(**{"name": str(name), **body})
        except ValidationError as error:
            mistakes += _sentences(f"arms.{name}", error)
    if mistakes:
        raise DraftpickError(f"{path}: {len(mistakes)} mistake(s): " + "; ".join(mistakes))
    if AUTOREGRESSIVE not in arms:
        arms = {AUTOREGRESSIVE: ArmRecipe(name=AUTOREGRESSIVE, kind="autoregressive"), **arms}
    return arms


def choose(arms: dict[str, ArmRecipe], names: list[str] | None) -> dict[str, ArmRecipe]:
    """The named arms in the order of `arms`, or all; raises NoSuchName."""
    if not names:
        return arms
    for name in names:
        if name not in arms:
            raise NoSuchName("arm", name, list(arms))
    return {name: recipe for name, recipe in arms.items() if name in names}


def _sentences(at: str, error: ValidationError) -> list[str]:
    lines = []
    for detail in error.errors(include_url=False):
        where = ".".join([*([at] if at else []), *(str(part) for part in detail["loc"])])
        lines.append(f"{where}: {detail['msg'].removeprefix('Value error, ')}")
    return lines
