"""Whether two arms of one name are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .base import ArmRecipe
from .model_name import BY_WEIGHTS


def fingerprint(arms: Mapping[str, ArmRecipe]) -> str:
    """Eight hex digits over the arms' names and recipes, their notes left out; local models count
    by their weights, wherever they lie."""
    recipes = {
        name: arm.kind
        + arm.model_dump_json(exclude_defaults=True, exclude={"note"}, context=BY_WEIGHTS)
        for name, arm in arms.items()
    }
    return hashlib.sha256(json.dumps(recipes, sort_keys=True).encode()).hexdigest()[:8]
