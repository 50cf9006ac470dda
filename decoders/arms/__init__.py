"""Arms: what each kind may say, and how a file of them is read."""

from __future__ import annotations

from ..common.plugins import watched
from ..methods.eagle3.recipe import Eagle3Recipe
from ..methods.early_exit.recipe import EarlyExitRecipe
from ..methods.hybrid.recipe import HybridRecipe
from ..methods.max_gram.recipe import MaxGramRecipe
from ..methods.neural.recipe import NeuralRecipe
from ..methods.plain.recipe import AutoregressiveRecipe
from ..methods.recurrent.recipe import RecurrentRecipe
from ..methods.suffix.recipe import SuffixRecipe
from ..methods.tree.recipe import TreeRecipe
from ..recipes.base import ArmRecipe, DraftingRecipe
from ..recipes.kinds import ENGINES, KINDS, fields_of, recipe, recipe_of
from ..recipes.length import LENGTHS, LengthRecipe
from ..recipes.verifier import RULES, VerifierRecipe
from .file import AUTOREGRESSIVE, UNTRAINED_ARMS, arms_made_for, arms_of, choose, load_arms, remote

__all__ = [
    "AUTOREGRESSIVE", "ENGINES", "KINDS", "LENGTHS", "RULES", "UNTRAINED_ARMS", "ArmRecipe",
    "DraftingRecipe", "LengthRecipe", "VerifierRecipe", "arms_made_for", "arms_of", "choose",
    "fields_of", "load_arms", "recipe", "recipe_of", "remote",
]  # fmt: skip


# a new kind is a folder in methods/ and a line here; from outside KINDS["mine"] = MyRecipe
KINDS.update(
    {
        "autoregressive": AutoregressiveRecipe,
        "neural": NeuralRecipe,
        "early_exit": EarlyExitRecipe,
        "recurrent": RecurrentRecipe,
        "eagle3": Eagle3Recipe,
        "max_gram": MaxGramRecipe,
        "suffix": SuffixRecipe,
        "hybrid": HybridRecipe,
        "tree": TreeRecipe,
    }
)
watched("arm kind", KINDS)
