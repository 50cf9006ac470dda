"""Verifiers: which drafted tokens are accepted, and the token that follows them."""

from .bild import BiLD
from .deferral import SpeculativeCascade
from .lenient import Lenient
from .lossless import Lossless
from .lossy import Lossy

__all__ = ["BiLD", "Lenient", "Lossless", "Lossy", "SpeculativeCascade"]
