"""A server's steps, and what passes cost by them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from effort import examples
from fake_endpoints import FakeEndpoint, listening
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from decoders.endpoints.server import server_at, with_model
from decoders.endpoints.steps import Fewer, costs_of_steps, step_of, sweep
from decoders.endpoints.stream import client
from router import cli


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


def test_a_server_is_swept(tmp_path: Path) -> None:
    """Steps of 4 ms for one or two answers, and a third has to wait: two are all it writes."""
    rows = threading.Semaphore(2)
    held: dict[int, bool] = {}

    def step_s(prompt: str) -> float:
        me = threading.get_ident()
        if me not in held:
            rows.acquire()
            held[me] = True
        return 0.004

    class Server(FakeEndpoint):
        pass

    def words(prompt: str) -> list[str]:
        return [f" {n}" for n in range(16)]

    server = Server(step_s=step_s, words=words)
    out = tmp_path / "costs.json"
    releasing = threading.Thread(target=_release, args=(server, rows, held), daemon=True)
    with listening(server):
        releasing.start()
        named = with_model(client(), server_at(server.url))
        assert named.model == "fake"
        options = ["--most", "4", "--tokens", "16", "--out", str(out)]
        assert cli.main(["costs", server.url, *options]) == 0
    record = json.loads(out.read_text())
    assert record["model"] == "fake" and list(record["step_s"][0]) == ["1", "2"]
    assert record["costs"]["verify_s"][0] == pytest.approx(0.0045, abs=0.002)
    assert all(asked["ignore_eos"] for asked in server.asked)


def _release(server: FakeEndpoint, rows: threading.Semaphore, held: dict[int, bool]) -> None:
    """A row is free once its thread has ended."""
    import time

    while server.port:
        alive = {thread.ident for thread in threading.enumerate()}
        for me in [each for each in held if each not in alive]:
            del held[me]
            rows.release()
        time.sleep(0.001)


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


@pytest.mark.parametrize("url", ["nowhere", "ftp://x", "http://", "http://me:pw@x/v1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(DraftpickError, match="cannot be asked: url"):
        server_at(url)
