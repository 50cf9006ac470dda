"""Things by dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def below(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin so, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}
