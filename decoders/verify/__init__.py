"""Verifiers by name."""

from .base import Verifier
from .lenient import Lenient
from .lossless import Lossless

VERIFIERS: dict[str, type[Verifier]] = {"lossless": Lossless}

__all__ = ["VERIFIERS", "Lenient", "Lossless", "Verifier"]
