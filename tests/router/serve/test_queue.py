"""Clients take turns, and the queue is bounded."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from router.serve.queue import FairQueue, QueueFull


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
