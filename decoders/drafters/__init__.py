"""Drafters: none, an n-gram index, a model of its own or a tree from it, the target's own first
layers, a recurrence or a head over its states, and cascades of these."""

from .catch_up import begin
from .cs_drafting import cs_drafter
from .eagle3 import Eagle3Drafter
from .early_exit import EarlyExitDrafter
from .horizontal import HorizontalDrafter, Part
from .hybrid import HybridDrafter
from .max_gram import MaxGramDrafter
from .neural import NeuralDrafter
from .null import NullDrafter
from .recurrent import RecurrentDrafter
from .suffix import SuffixDrafter
from .translated import TranslatedDrafter
from .tree import TreeDrafter
from .vertical import VerticalDrafter
from .widened import WidenedDrafter

__all__ = [
    "Eagle3Drafter",
    "EarlyExitDrafter",
    "HorizontalDrafter",
    "HybridDrafter",
    "MaxGramDrafter",
    "NeuralDrafter",
    "NullDrafter",
    "Part",
    "RecurrentDrafter",
    "SuffixDrafter",
    "TranslatedDrafter",
    "TreeDrafter",
    "VerticalDrafter",
    "WidenedDrafter",
    "begin",
    "cs_drafter",
]
