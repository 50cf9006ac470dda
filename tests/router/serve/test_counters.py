"""What replicas tell of themselves, added up: as of one server that did all of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from serve_toys import samples

from decoders.records import DecodeResult
from router.records import RoutedResult
from router.serve.metrics import Metrics
from router.serve.replicas.counters import Counters, Snapshot

ARMS = ["autoregressive", "copy", "größer/日本"]


def metrics(running: int = 0) -> Metrics:
    return Metrics("toy", "even-odd", ARMS[:2], lambda: running, lambda: 2 * running)


def told(one: Metrics) -> Snapshot:
    return Snapshot(one.stats() | {"limits": {"most_tokens": 64}}, one.exposition()[0].decode())


def grown(text: str) -> dict[Any, float]:
    return samples(text, ("counter", "histogram"))


@dataclass(frozen=True)
class Answered:
    """rounds: of the tokens drafted and accepted in each. seconds: a binary fraction, so that sums
    do not depend on their generation."""

    arm: str
    rounds: list[tuple[int, int]]
    seconds: float

    def by(self, *ledgers: Metrics) -> None:
        for each in ledgers:
            tokens = 0
            for drafted, accepted in self.rounds:
                each.round(self.arm, accepted + 1, accepted, drafted)
                tokens += accepted + 1
            each.first_token(self.seconds)
            result = DecodeResult(
                arm=self.arm, prompt_ids=[0] * 5, ids=[0] * tokens, text="", finish_reason="eos",
                rounds=len(self.rounds), drafted=0, accepted=0, accepted_per_position=[],
                target_calls=1, draft_calls=0, prefill_s=self.seconds, draft_s=0.0, verify_s=0.0,
                other_s=0.0,
            )  # fmt: skip
            routed = RoutedResult(result, self.arm, 1.0, [1.0], embed_s=0.0, policy_s=0.0)
            each.answered(self.arm, routed, 0.0, self.seconds * (tokens - 1))


rounds = st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
answers = st.builds(
    Answered,
    st.sampled_from(ARMS),
    st.lists(rounds, min_size=1, max_size=3),
    st.sampled_from([0.25, 0.5, 2.0]),
)
steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 2), answers), max_size=4),  # who wrote what
        st.sets(st.integers(0, 2)),  # who is silent
        st.sets(st.integers(0, 2), max_size=1),  # who dies, and is replaced
    ),
    max_size=6,
)


@dataclass(eq=False)
class Server:
    metrics: Metrics = field(default_factory=metrics)


@examples(60)
@given(steps)
def test_counts_never_fall_and_are_those_of_one_server_that_did_it_all(steps: Any) -> None:
    totals, one = Counters(), metrics()
    servers = [Server() for _ in range(3)]
    before: dict[Any, float] = {}
    for written, silent, dying in steps:
        for place, answer in written:
            answer.by(servers[place].metrics, one)
        answering = [each for place, each in enumerate(servers) if place not in silent]
        totals.update({each: told(each.metrics) for each in answering}, servers)
        now = grown(totals.metrics()[0].decode())
        assert all(now[name] >= value for name, value in before.items())
        before = now
        totals.update({each: told(each.metrics) for each in servers}, servers)  # the last of some
        for place in dying:
            servers[place] = Server()
    totals.update({each: told(each.metrics) for each in servers}, servers)
    assert totals.stats()["arms"] == one.stats()["arms"]
    assert grown(totals.metrics()[0].decode()) == grown(told(one).metrics)


def test_what_holds_at_the_moment_is_of_those_that_answered() -> None:
    totals = Counters()
    assert totals.empty
    silent, gone, here = metrics(running=1), metrics(running=10), metrics(running=100)
    everyone = {"silent": told(silent), "gone": told(gone), "here": told(here)}
    totals.update(everyone, everyone)
    assert not totals.empty and totals.stats()["requests_running"] == 111
    totals.update({"gone": told(gone), "here": told(here)}, ["silent", "here"])
    found = totals.stats()
    assert (found["requests_running"], found["requests_waiting"]) == (100, 200)
    gauges = samples(totals.metrics()[0].decode(), ("gauge",))
    assert gauges["vllm:num_requests_running",] == 100
    totals.update({}, [])
    found = totals.stats()
    assert found["requests_running"] == found["tokens_per_s"] == 0
    assert found["target"] == "toy" and found["limits"] == {"most_tokens": 64}
    assert not samples(totals.metrics()[0].decode(), ("gauge",))


def test_nothing_is_held_of_those_that_have_gone_but_their_counts() -> None:
    totals = Counters()
    for _ in range(3):
        server = Server()
        gone = weakref.ref(server)
        totals.update({server: told(server.metrics)}, [server])
        del server
        totals.update({}, [])
        assert gone() is None


def test_rates_are_of_the_sums_and_no_mean_of_rates() -> None:
    totals, one, other = Counters(), metrics(), metrics()
    Answered("copy", [(4, 4)] * 3, 0.5).by(one)
    Answered("copy", [(2, 0)], 2.0).by(other)
    totals.update({1: told(one), 2: told(other)}, [1, 2])
    copy = totals.stats()["arms"]["copy"]
    assert copy["requests"] == 2 and copy["share"] == 1
    assert copy["acceptance_rate"] == 12 / 14
    assert copy["mean_acceptance_length"] == 1 + 12 / 4
    assert copy["accepted_per_position"] == [3 / 4] * 4
    assert copy["tokens_per_s"] == (15 + 1) / 2.5
