"""The scheduler: requests in turn on one thread, cancelled within a round, drained at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from serve_toys import Heard, ToyPolicy, generation, toy_engine, until

from decoders.common.errors import Cancelled, DraftpickError
from decoders.records import Request
from policies import fixed_policy
from router.records import RoutedResult
from router.routing.router import Router
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, Scheduler

PAUSE_S = 0.01


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    engine = toy_engine(PAUSE_S)
    made = Scheduler({DEFAULT: Router(engine, ToyPolicy())}, FairQueue(4))
    yield made
    made.close()


def test_one_answers_while_others_wait_and_clients_take_turns(scheduler: Scheduler) -> None:
    ended: list[str] = []

    class Named(Heard):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def done(self, result: RoutedResult) -> None:
            ended.append(self.name)
            super().done(result)

    told = [Named("hog 0")]
    scheduler.submit(generation(client="hog"), told[0])
    assert until(lambda: scheduler.running == 1)
    for name in ("hog 1", "hog 2", "late"):
        told.append(Named(name))
        scheduler.submit(generation(client=name.split()[0]), told[-1])
    assert (scheduler.running, scheduler.waiting) == (1, 3)
    assert all(heard.ended.wait(10) for heard in told)
    assert ended == ["hog 0", "hog 1", "late", "hog 2"]
    assert until(lambda: scheduler.running == 0) and scheduler.waiting == 0


@pytest.mark.parametrize("arm", ["autoregressive", "copy", "beams"])
def test_after_a_cancelled_answer_the_engine_answers_as_ever(
    scheduler: Scheduler, arm: str
) -> None:
    left = Heard(leave_after=2)
    left.handle = scheduler.submit(generation(tokens=200, arm="copy"), left)
    assert left.ended.wait(5) and isinstance(left.error, Cancelled) and left.result is None
    assert left.rounds == 2
    again = Heard()
    scheduler.submit(generation(arm=arm), again)
    assert again.ended.wait(5) and again.result is not None
    alone = toy_engine().decode(arm, generation().prompt_ids, Request(20))
    assert again.result.result.ids == alone.ids


def test_a_waiting_request_is_cancelled_at_once(scheduler: Scheduler) -> None:
    first, second = Heard(), Heard()
    scheduler.submit(generation(tokens=100), first)
    assert until(lambda: scheduler.running == 1)
    handle = scheduler.submit(generation(), second)
    handle.cancel()
    assert second.ended.is_set() and isinstance(second.error, Cancelled)
    assert not first.ended.is_set()
    handle.cancel()  # nothing more happens


def test_callbacks_that_fail_harm_nobody_else(scheduler: Scheduler) -> None:
    class Broken(Heard):
        def done(self, result: RoutedResult) -> None:
            raise RuntimeError("told to fail")

    scheduler.submit(generation(), Broken())
    right = Heard()
    scheduler.submit(generation(), right)
    assert right.ended.wait(5) and right.result is not None


def test_closing_cancels_what_does_not_end(scheduler: Scheduler) -> None:
    told = [Heard() for _ in range(3)]
    for heard in told:
        scheduler.submit(generation(tokens=400), heard)
    assert not scheduler.drain(0.05)
    scheduler.close()
    assert all(isinstance(heard.error, Cancelled) for heard in told)


def test_new_arms_take_over_after_the_answers_under_way(scheduler: Scheduler) -> None:
    """What waits is answered by the new ones, and nothing is lost."""
    engine = scheduler.routers[DEFAULT].engine

    def exchanged(old: Mapping[str, Router]) -> dict[str, Router]:
        engine.declare({name: engine.arms[name] for name in ("autoregressive", "copy")})
        return {DEFAULT: Router(engine, fixed_policy(["autoregressive", "copy"], "copy"))}

    first, second, third = Heard(), Heard(), Heard()
    scheduler.submit(generation(), first)
    assert until(lambda: scheduler.running == 1)
    scheduler.exchange(exchanged)
    scheduler.submit(generation(), second)
    assert "beams" in engine.arm_names  # not while the first is written
    assert first.ended.wait(10) and second.ended.wait(10) and first.ids == second.ids
    assert engine.arm_names == ["autoregressive", "copy"]
    assert second.result is not None and second.result.arm == "copy"

    def broken(old: Mapping[str, Router]) -> dict[str, Router]:
        raise DraftpickError("half a file")

    scheduler.exchange(broken)
    scheduler.submit(generation(), third)
    assert third.ended.wait(10) and third.ids == first.ids  # the old ones answer
