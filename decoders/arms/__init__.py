"""Arms: what each kind may say, and how a file of them is read."""

from ..recipes.base import ArmRecipe, DraftingRecipe
from ..recipes.kinds import ENGINES, KINDS, fields_of, recipe, recipe_of
from ..recipes.length import LENGTHS, LengthRecipe
from ..recipes.verifier import RULES, VerifierRecipe
from . import builtin as builtin  # fills KINDS
from .file import AUTOREGRESSIVE, UNTRAINED_ARMS, arms_made_for, arms_of, choose, load_arms, remote

__all__ = [
    "AUTOREGRESSIVE", "ENGINES", "KINDS", "LENGTHS", "RULES", "UNTRAINED_ARMS", "ArmRecipe",
    "DraftingRecipe", "LengthRecipe", "VerifierRecipe", "arms_made_for", "arms_of", "choose",
    "fields_of", "load_arms", "recipe", "recipe_of", "remote",
]  # fmt: skip
