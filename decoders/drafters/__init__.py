"""Drafters: none, an n-gram index, a model of its own or a tree from it, the target's own first
layers, or a recurrence over its final states."""

from ..protocols import Drafter, work
from .begin import begin
from .early_exit import EarlyExitDrafter
from .hybrid import HybridDrafter
from .max_gram import MaxGramDrafter
from .neural import NeuralDrafter
from .null import NullDrafter
from .recurrent import RecurrentDrafter
from .tree import TreeDrafter
from .widened import WidenedDrafter

__all__ = [
    "Drafter",
    "EarlyExitDrafter",
    "HybridDrafter",
    "MaxGramDrafter",
    "NeuralDrafter",
    "NullDrafter",
    "RecurrentDrafter",
    "TreeDrafter",
    "WidenedDrafter",
    "begin",
    "work",
]
