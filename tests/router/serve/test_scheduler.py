"""The scheduler: requests in turn on one thread, cancelled within a round, drained at the end."""

import threading
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_toys import Heard, ToyPolicy, generation, toy_engine, until

from decoders.common.errors import Cancelled, DraftpickError
from decoders.records import Request
from policies import fixed_policy
from router.records import RoutedResult
from router.routing.router import Router
from router.serve import scheduler as desk_module
from router.serve.queue import FairQueue, QueueFull
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


def test_closing_does_not_wait_for_new_arms(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "END_S", 0.1)
    begun, loaded = threading.Event(), threading.Event()

    def slow(old: Mapping[str, Router]) -> Mapping[str, Router]:
        begun.set()
        loaded.wait(20)
        return old

    scheduler.exchange(slow)
    assert begun.wait(5)
    ending = threading.Thread(target=scheduler.close)
    ending.start()
    ending.join(5)
    assert not ending.is_alive()
    loaded.set()


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


# -- clients take turns, and the queue is bounded --------------------------------------------------


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_clients_take_turns_and_nothing_is_lost(clients: list[str]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(12)
    for number, client in enumerate(clients):
        queue.put(client, (client, number))
    taken: list[tuple[str, int]] = []
    while (item := queue.take()) is not None:
        still = {client for number, client in enumerate(clients) if (client, number) not in taken}
        turns = {c: max((at for at, t in enumerate(taken) if t[0] == c), default=-1) for c in still}
        assert turns[item[0]] == min(turns.values())  # whose last turn is longest ago
        taken.append(item)
    assert sorted(n for _, n in taken) == list(range(len(clients)))
    for client in set(clients):
        own_items = [n for c, n in taken if c == client]
        assert own_items == sorted(own_items)  # first come first served within each


def test_a_full_queue_refuses_and_has_room_again() -> None:
    queue: FairQueue[int] = FairQueue(2)
    queue.put("a", 1)
    queue.put("b", 2)
    with pytest.raises(QueueFull):
        queue.put("c", 3)
    assert queue.remove(1) and not queue.remove(1)
    queue.put("c", 3)
    assert [queue.take(), queue.take(), queue.take()] == [2, 3, None]
    with pytest.raises(DraftpickError, match="at least 1"):
        FairQueue(0)


def test_whoever_asks_for_all_places_gives_one_up() -> None:
    queue: FairQueue[str] = FairQueue(4)
    for number in range(4):
        assert queue.put("hog", f"hog {number}") is None
    with pytest.raises(QueueFull):
        queue.put("hog", "hog 4")
    assert queue.put("late", "late 0") == "hog 3"
    assert queue.put("other", "other 0") == "hog 2"
    with pytest.raises(QueueFull):  # no one has two more
        queue.put("late", "late 1")
    assert [queue.take() for _ in range(5)] == ["hog 0", "late 0", "other 0", "hog 1", None]


def test_waiting_ends_when_something_comes() -> None:
    queue: FairQueue[int] = FairQueue(2)
    assert not queue.wait(0.01)
    threading.Timer(0.02, queue.put, ("a", 1)).start()
    assert queue.wait(5)
