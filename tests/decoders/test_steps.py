"""A server's steps, and what passes cost by them."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from decoders.endpoints.stream import client
from decoders.testing.fake_server import FakeEndpoint, listening
from router import cli
from router.engines.server import server_at, with_model
from router.engines.step_times import Fewer, costs_of_steps, step_of, step_s, sweep


@pytest.fixture(autouse=True)
def a_token_each_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second, by the clock that times events."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 4)
    monkeypatch.setattr("router.engines.server.time", clock)


@given(st.floats(0.001, 1), st.floats(0, 0.1), st.integers(1, 6))
@examples(60)
def test_a_pass_costs_what_a_step_of_as_many_tokens_does(
    base: float, a_token: float, doublings: int
) -> None:
    steps = {2**n: base + a_token * 2**n for n in range(doublings + 1)}
    costs = costs_of_steps([steps])
    most = 2**doublings
    for answers in (1, *costs.at_once):
        priced = costs.of_answers(answers)
        for width in range(1, min(17, most // answers) + 1):
            wanted = base + a_token * answers * width
            assert priced.verify(width) == pytest.approx(wanted)
        assert priced.verify(30) == pytest.approx(base + a_token * answers * 30)
    assert max(costs.at_once, default=1) == max(1, most // 2)


def test_more_answers_never_take_less_and_repeats_are_kept() -> None:
    noisy = {1: 0.03, 2: 0.02, 4: 0.025}
    costs = costs_of_steps([noisy, {n: 2 * s for n, s in noisy.items()}])
    assert costs.verify_s[:2] == (0.03, 0.03) and len(costs.repeats) == 2
    assert costs.repeats[0].verify_s[:2] == (0.02, 0.02)


def test_only_the_stretch_counts_in_which_all_are_written() -> None:
    first = [0.1 * n for n in range(30)]
    late = [1.0 + 0.1 * n for n in range(30)]
    assert step_of([first, late]) == pytest.approx(0.1)
    assert step_of([first], tokens_an_event=2.0) == pytest.approx(0.05)
    with pytest.raises(Fewer):
        step_of([first, [3.0 + 0.1 * n for n in range(30)]])
    with pytest.raises(Fewer):
        step_of([first, []])


def test_a_server_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes two answers at once, and others wait."""

    def timed(connections: Any, server: Any, count: int, tokens: int) -> float:
        if count > 2:
            raise Fewer
        return 0.01 + 0.001 * count

    monkeypatch.setattr("router.engines.step_times.step_s", timed)
    server = FakeEndpoint(words=lambda prompt: [f" {n}" for n in range(16)])
    out = tmp_path / "costs.json"
    with listening(server):
        assert with_model(client(), server_at(server.url)).model == "fake"
        options = ["--most", "8", "--tokens", "16", "--out", str(out)]
        assert cli.main(["costs", server.url, *options]) == 0
    record = json.loads(out.read_text())
    assert record["model"] == "fake" and record["step_s"] == [{"1": 0.011, "2": 0.012}] * 3
    assert record["costs"]["verify_s"] == pytest.approx([0.011, 0.012])
    assert all(asked["ignore_eos"] for asked in server.asked)


@pytest.mark.parametrize("named", ["content", "reasoning_content"])
def test_a_step_is_the_time_between_two_tokens_of_an_answer(named: str) -> None:
    with listening(server := FakeEndpoint(words=lambda prompt: [" a"] * 16, named=named)):
        assert step_s(client(), server_at(server.url, "m"), 1, 16) == 0.25


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (FakeEndpoint(counted=40, words=lambda p: [" a"] * 16), "several tokens at a time"),
        (FakeEndpoint(counts=False, words=lambda p: [" a"] * 16), "does not count the tokens"),
        (FakeEndpoint(words=lambda p: [" a"] * 3), "too few tokens"),
        (FakeEndpoint(status=503), "does not answer"),
    ],
)
def test_servers_that_cannot_be_timed(server: FakeEndpoint, says: str) -> None:
    with listening(server), pytest.raises(DraftpickError, match=says):
        sweep(client(), server_at(server.url, "m"), [1], 16, repeats=1)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v2", "http://h:8000/v2"),
        ("http://h:8000?x=1", "http://h:8000/v1?x=1"),
    ],
)
def test_an_address_needs_no_path(url: str, asked: str) -> None:
    assert server_at(url).url == asked


@pytest.mark.parametrize("url", ["nowhere", "ftp://x", "http://", "http://[x", "http://me:pw@x/v1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(DraftpickError, match="cannot be asked: url"):
        server_at(url)
