"""Whether arms are endpoints, told without what asks those."""

from __future__ import annotations

from collections.abc import Mapping

from ..arms import ArmRecipe
from ..common.errors import DraftpickError


def remote(recipes: Mapping[str, ArmRecipe]) -> bool:
    """Whether these arms are endpoints; raises DraftpickError where only some are."""
    kinds = {arm.remote for arm in recipes.values()}
    if len(kinds) > 1:
        apart = [name for name, arm in recipes.items() if arm.remote]
        raise DraftpickError(
            f"{', '.join(apart)} answer without a target, the other arms on one; put endpoints "
            "into an arms file of their own"
        )
    return kinds == {True}
