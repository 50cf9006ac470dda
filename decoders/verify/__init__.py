"""Verifiers: which drafted tokens are accepted, and the token that follows them."""

from .lossless import Lossless

__all__ = ["Lossless"]
