"""Verifiers by name."""

from .base import Verifier
from .lossless import Lossless

VERIFIERS: dict[str, type[Verifier]] = {"lossless": Lossless}

__all__ = ["VERIFIERS", "Lossless", "Verifier"]
