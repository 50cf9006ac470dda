"""Libraries' loggers, silenced for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def quiet(levels: Mapping[str, int]) -> Iterator[None]:
    """Loggers by name, at these levels while the context lasts."""
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
