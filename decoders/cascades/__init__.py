"""Ways to answer that do not draft and verify: the sequential cascades and CALM."""

from .calm import CONFIDENCES, Calm
from .oracle import OracleCascade
from .sequence import SequenceCascade
from .token import TokenCascade

__all__ = ["CONFIDENCES", "Calm", "OracleCascade", "SequenceCascade", "TokenCascade"]
