"""Server-sent events."""

from __future__ import annotations

import pytest

from decoders.endpoints.events import data_of

STREAM = (
    ": a comment\r\n\r\nevent: x\rid: 7\rdata: one\r\rdata:two\ndata:  three\n\n\ndata\n\n"
    "data: a\u2028b\x0bc\x85d\r\n\r\ndata: last\r\r"
)
DATA = ["one", "two\n three", "", "a\u2028b\x0bc\x85d", "last"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_however_they_come(size: int) -> None:
    parts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [*data_of(parts)] == DATA


@pytest.mark.parametrize("cut", ["data: x", "data: x\n", "data: x\r", "data: x\n: then"])
def test_an_event_that_is_not_ended_is_none(cut: str) -> None:
    assert [*data_of(["data: whole\n\n", cut])] == ["whole"]
