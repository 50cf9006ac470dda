"""Draft-length rules by name."""

from .adaptive import AdaptiveLength
from .base import DraftLength
from .fixed import FixedLength
from .scheduled import ScheduledLength

__all__ = ["AdaptiveLength", "DraftLength", "FixedLength", "ScheduledLength"]
