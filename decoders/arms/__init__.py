"""Arms: what each kind may say, and how a file of them is read."""

from . import builtin as builtin  # fills KINDS
from .base import ArmRecipe, DraftingRecipe
from .file import AUTOREGRESSIVE, UNTRAINED_ARMS, arms_made_for, arms_of, choose, load_arms
from .kinds import KINDS, fields_of, recipe, recipe_of
from .length import LENGTHS, LengthRecipe
from .verifier import RULES, VerifierRecipe

__all__ = [
    "AUTOREGRESSIVE", "KINDS", "LENGTHS", "RULES", "UNTRAINED_ARMS", "ArmRecipe", "DraftingRecipe",
    "LengthRecipe", "VerifierRecipe", "arms_made_for", "arms_of", "choose", "fields_of",
    "load_arms", "recipe", "recipe_of",
]  # fmt: skip
