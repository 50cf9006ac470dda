"""A server for tests that leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the toys lie beside the tests
sys.path.append(str(Path(__file__).parents[2] / "decoders"))  # and those of models

from serve_toys import Served, served


@pytest.fixture(scope="session")
def toy() -> Iterator[Served]:
    with served() as running:
        yield running
