"""Draft lengths: how many tokens a round drafts."""

from .adaptive import AdaptiveLength
from .fixed import FixedLength
from .scheduled import ScheduledLength

__all__ = ["AdaptiveLength", "FixedLength", "ScheduledLength"]
