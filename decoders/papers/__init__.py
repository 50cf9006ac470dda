"""The papers' methods that do not ship as arms: cascades, beams, CALM and lossy verification.

A plugin like any other package's: importing it fills KINDS and RULES.
"""

from ..arms import KINDS, RULES
from .beam.recipe import BeamRecipe, SampledBeamsRecipe
from .calm.recipe import CalmRecipe
from .cascades.recipe import OracleCascadeRecipe, SequenceCascadeRecipe, TokenCascadeRecipe
from .cs_drafting.recipe import CSDraftingRecipe, HierarchyRecipe, HorizontalRecipe, VerticalRecipe
from .rules.recipes import (
    BiLDRule,
    BiLDStarRule,
    DeferralRule,
    LosslessRule,
    LossyRule,
    LossyStarRule,
)

KINDS |= {
    "vertical": VerticalRecipe,
    "horizontal": HorizontalRecipe,
    "cs_drafting": CSDraftingRecipe,
    "hierarchy": HierarchyRecipe,
    "token_cascade": TokenCascadeRecipe,
    "sequence_cascade": SequenceCascadeRecipe,
    "oracle_cascade": OracleCascadeRecipe,
    "calm": CalmRecipe,
    "beam": BeamRecipe,
    "sampled_beams": SampledBeamsRecipe,
}
RULES |= {
    "lossless": LosslessRule,
    "lossy": LossyRule,
    "lossy_star": LossyStarRule,
    "chow": DeferralRule,
    "diff": DeferralRule,
    "opt": DeferralRule,
    "bild_star": BiLDStarRule,
    "bild": BiLDRule,
}
