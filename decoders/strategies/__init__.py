"""Strategies besides the speculative loop: the sequential cascades, CALM and beam searches."""

from .beam import BeamDraft, BeamSearch
from .calm import CONFIDENCES, Calm
from .oracle_cascade import OracleCascade
from .sampled_beams import SampledBeams
from .sequence_cascade import SequenceCascade
from .token_cascade import TokenCascade

__all__ = [
    "CONFIDENCES",
    "BeamDraft",
    "BeamSearch",
    "Calm",
    "OracleCascade",
    "SampledBeams",
    "SequenceCascade",
    "TokenCascade",
]
