"""The kinds of arm that the core brings. A new one is a folder in methods/ and a line here; from
outside it is the same line, KINDS["mine"] = MyRecipe."""

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
from ..recipes.kinds import KINDS

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
