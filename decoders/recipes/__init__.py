"""Recipes by kind: what an arm's entry in the YAML file may say, and what it becomes.

A new kind of arm is a file here and a line in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .autoregressive import AutoregressiveRecipe
from .base import ArmRecipe, DraftingRecipe, LengthRecipe
from .beam import BeamRecipe
from .calm import CalmRecipe
from .cascades import OracleCascadeRecipe, SequenceCascadeRecipe, TokenCascadeRecipe
from .cs_drafting import CSDraftingRecipe
from .early_exit import EarlyExitRecipe
from .hierarchy import HierarchyRecipe
from .horizontal import HorizontalRecipe
from .hybrid import HybridRecipe
from .max_gram import MaxGramRecipe
from .neural import NeuralRecipe
from .recurrent import RecurrentRecipe
from .sampled_beams import SampledBeamsRecipe
from .tree import TreeRecipe
from .vertical import VerticalRecipe

KINDS: dict[str, type[ArmRecipe]] = {
    "autoregressive": AutoregressiveRecipe,
    "neural": NeuralRecipe,
    "early_exit": EarlyExitRecipe,
    "recurrent": RecurrentRecipe,
    "max_gram": MaxGramRecipe,
    "hybrid": HybridRecipe,
    "vertical": VerticalRecipe,
    "horizontal": HorizontalRecipe,
    "cs_drafting": CSDraftingRecipe,
    "hierarchy": HierarchyRecipe,
    "token_cascade": TokenCascadeRecipe,
    "sequence_cascade": SequenceCascadeRecipe,
    "oracle_cascade": OracleCascadeRecipe,
    "calm": CalmRecipe,
    "tree": TreeRecipe,
    "beam": BeamRecipe,
    "sampled_beams": SampledBeamsRecipe,
}


def recipe(*, kind: str, **fields: Any) -> ArmRecipe:
    """A recipe of that kind. Raises ValueError where the kind is unknown, pydantic's
    ValidationError (a ValueError too) where a field is wrong."""
    return recipe_of({"kind": kind, **fields})


def recipe_of(body: Mapping[Any, Any]) -> ArmRecipe:
    """The same for what a YAML file says, whose keys may be anything."""
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        said = "is missing" if kind is None else f"{kind!r} is not known"
        raise ValueError(f"kind: {said}; give one of {', '.join(KINDS)}")
    return KINDS[kind].model_validate(body)


def fields_of(kind: str) -> list[str]:
    """What an entry of that kind may say."""
    return [name for name in KINDS[kind].model_fields if name != "name"]


__all__ = [
    "KINDS", "ArmRecipe", "DraftingRecipe", "LengthRecipe", "fields_of", "recipe", "recipe_of"
]  # fmt: skip
