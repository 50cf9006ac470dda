"""A server for tests that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serve_toys import Served, served


@pytest.fixture(scope="session")
def toy() -> Iterator[Served]:
    with served() as running:
        yield running
