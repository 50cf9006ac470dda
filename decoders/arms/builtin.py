"""The kinds of arm that draftpick brings. A new one is a file next to this one and a line here;
from outside it is the same line, KINDS["mine"] = MyRecipe."""

from __future__ import annotations

from ..common.plugins import watched
from .autoregressive import AutoregressiveRecipe
from .beam import BeamRecipe
from .calm import CalmRecipe
from .cascades import OracleCascadeRecipe, SequenceCascadeRecipe, TokenCascadeRecipe
from .cs_drafting import CSDraftingRecipe
from .eagle3 import Eagle3Recipe
from .early_exit import EarlyExitRecipe
from .endpoint import EndpointRecipe
from .hierarchy import HierarchyRecipe
from .horizontal import HorizontalRecipe
from .hybrid import HybridRecipe
from .kinds import KINDS
from .max_gram import MaxGramRecipe
from .neural import NeuralRecipe
from .recurrent import RecurrentRecipe
from .sampled_beams import SampledBeamsRecipe
from .suffix import SuffixRecipe
from .tree import TreeRecipe
from .vertical import VerticalRecipe

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
        "endpoint": EndpointRecipe,
    }
)
watched("arm kind", KINDS)
