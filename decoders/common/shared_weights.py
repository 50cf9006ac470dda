"""What several hold at once and none owns, found by what it was loaded from."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Shared(Generic[T]):
    """Things that lend their weights to others loaded from the same place; each is forgotten once
    nobody holds it, and the rest go on lending."""

    def __init__(self) -> None:
        self._by: dict[Hashable, WeakSet[T]] = {}

    def get(self, key: Hashable) -> T | None:
        """One that is held, None where none is."""
        return next(iter(self._by.get(key, ())), None)

    def add(self, key: Hashable, one: T) -> T:
        """`one`, which lends from now on."""
        for empty in [each for each, lenders in self._by.items() if not lenders]:
            del self._by[empty]
        self._by.setdefault(key, WeakSet()).add(one)
        return one
