"""A server for tests that leave nothing behind; servers that end at once."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from serve_toys import Served, served


@pytest.fixture(scope="session", autouse=True)
def servers_end_at_once() -> Iterator[None]:
    """uvicorn looks every tenth of a second whether it is to end, and whether it has; here every
    two hundredth."""
    often = SimpleNamespace(**vars(asyncio) | {"sleep": lambda s: asyncio.sleep(s / 20)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", often)
        yield


@pytest.fixture(scope="session")
def toy(servers_end_at_once: None) -> Iterator[Served]:
    with served() as running:
        yield running
