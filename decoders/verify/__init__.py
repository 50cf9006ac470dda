"""The verifier: which drafted tokens are accepted, and the token that follows them."""

from .coupled import Coupled

__all__ = ["Coupled"]
