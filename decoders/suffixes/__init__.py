"""What earlier texts say about the next tokens: an index of them, the drafts that it votes for, and
the answers that a server keeps. Nothing here needs torch."""

from .earlier import EarlierAnswers
from .index import SuffixIndex
from .votes import Draft, Wanted, draft

__all__ = ["Draft", "EarlierAnswers", "SuffixIndex", "Wanted", "draft"]
