"""Whether two arms of one name are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..recipes.base import ArmRecipe
from ..recipes.model_name import BY_WEIGHTS


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
