"""From token ids to bytes and from bytes to text, as they come: the one place that does either."""

from .pieces import Piece, Places
from .text import TextStream, text_of
from .tokens import Spelling, Spells, specials_of, spelling_of

__all__ = [
    "Piece",
    "Places",
    "Spelling",
    "Spells",
    "TextStream",
    "specials_of",
    "spelling_of",
    "text_of",
]
