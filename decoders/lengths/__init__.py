"""Draft-length rules by name."""

from ..protocols import DraftLength
from .adaptive import AdaptiveLength
from .fixed import FixedLength
from .scheduled import ScheduledLength

__all__ = ["AdaptiveLength", "DraftLength", "FixedLength", "ScheduledLength"]
