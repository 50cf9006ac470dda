"""Strategies outside the speculative loop: the sequential cascades and CALM."""

from .calm import CONFIDENCES, Calm
from .oracle_cascade import OracleCascade
from .sequence_cascade import SequenceCascade
from .token_cascade import TokenCascade

__all__ = ["CONFIDENCES", "Calm", "OracleCascade", "SequenceCascade", "TokenCascade"]
