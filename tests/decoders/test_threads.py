"""Threads while other processes keep the cores busy."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from decoder_toys import Tiny, native
from decoder_toys import threads as set_threads

from collect.replay import writer
from collect.replay.stack import Stack
from decoders.backends import threads
from decoders.backends.threads import Threads
from decoders.common import machine
from decoders.common.machine import Look

ROOT = Path(__file__).parents[2]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What PyTorch's threads were set to, four of them at first."""
    now = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    return now


@pytest.mark.parametrize(
    ("others", "wanted"), [(0.0, 4), (0.4, 4), (0.6, 3), (1.0, 3), (2.0, 2), (3.2, 1), (9.0, 1)]
)
def test_as_many_threads_as_cores_are_left(four: list[int], others: float, wanted: int) -> None:
    last, now = Look(10.0, 3.0, 100.0), Look(11.0, 5.5, 102.5 + others)
    assert Threads().wanted(last, now, cores=4) == wanted


def test_a_process_that_may_use_more_cores_than_threads_keeps_them(four: list[int]) -> None:
    last, now = Look(0.0, 0.0, 0.0), Look(1.0, 1.0, 3.0)
    assert Threads().wanted(last, now, cores=16) == 4


def test_threads_come_and_go_with_the_neighbours(
    four: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [Look(0.0, 0.0, 0.0)]
    monkeypatch.setattr(threads, "look", lambda: looks[-1])
    monkeypatch.setattr(threads, "allowed_cores", lambda: 4)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: looks[-1].wall)
    mine = Threads()
    looks.append(Look(1.0, 3.0, 5.0))  # two cores' work of others
    mine.adapt()
    assert four[-1] == 2
    looks.append(Look(1.1, 3.3, 5.3))  # too soon to look
    mine.adapt()
    assert four == [4, 2]
    looks.append(Look(2.0, 5.0, 7.0))  # they are gone
    mine.adapt()
    assert four == [4, 2, 4]
    four.append(3)  # asked for by somebody else
    looks.append(Look(3.0, 8.0, 10.0))
    mine.adapt()
    assert four == [4, 2, 4, 3] and mine.full == 3


def test_threads_that_decode_in_turn_all_get_their_cores_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that began while a neighbour was busy does, too."""
    looks = [Look(0.0, 0.0, 0.0)]
    monkeypatch.setattr(threads, "look", lambda: looks[-1])
    monkeypatch.setattr(threads, "allowed_cores", lambda: 2)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: looks[-1].wall)
    monkeypatch.setattr(threads.control_group, "cores", lambda: None)
    with set_threads(2), ExitStack() as stack:
        mine = Threads()
        one, other, late = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3))
        each = [one, other]
        for busy, cores in ((0, 2), (1, 1), (0, 2)):
            for thread in each:
                last = looks[-1]
                looks.append(Look(last.wall + 1, last.own + 1, last.busy + 1 + busy))
                thread.submit(mine.adapt).result()
                assert thread.submit(torch.get_num_threads).result() == cores
            if busy:
                each.append(late)
                assert late.submit(torch.get_num_threads).result() == 1


def test_one_thread_never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(threads, "look", lambda: pytest.fail("looked"))
    Threads().adapt()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell")
def test_what_the_system_tells_grows() -> None:
    first = machine.look()
    sum(range(3_000_000))
    second = machine.look()
    assert second.wall > first.wall and second.own > first.own and second.busy >= first.busy


@pytest.mark.slow
def test_waiting_threads_spin_shortly_where_torch_comes_later() -> None:
    clean = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}

    def spins(code: str, **more: str) -> str:
        told = f"{code}; import os; print(os.environ.get('GOMP_SPINCOUNT'))"
        command = [sys.executable, "-c", told]
        done = subprocess.run(
            command, env=clean | more, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.split()[-1]

    command = "from router.cli import main; main(['arms', '--help'])"
    assert spins(command) == "10000"
    assert spins(command, GOMP_SPINCOUNT="7") == "7"
    assert spins(f"import torch; {command}") == "None"  # it has read its settings already
    assert spins("import decoders, router, collect, policies") == "None"  # a library sets nothing


def test_passes_on_a_cpu_look_at_the_neighbours(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = native(tiny())
    looked: list[int] = []
    monkeypatch.setattr(threads.threads(), "adapt", lambda: looked.append(target.length))
    target.prefill([1, 2, 3])
    target.extend(torch.tensor([4, 5]))
    target.extend_until(6, lambda h, below, depth: True)
    assert looked == [0, 3, 5]
    looked.clear()
    writer.write(Stack.of_backend(target), [[1, 2, 3]], 4, ())
    assert len(looked) == 4  # the prompt's, and that of each token but the last


def test_a_thread_that_let_go_computes_as_before() -> None:
    """And another takes over meanwhile."""
    x = torch.randn(64, 4096)
    expected = x.softmax(-1)
    threads.let_go()
    made: list[torch.Tensor] = []
    other = threading.Thread(target=lambda: made.append(x.softmax(-1)))
    other.start()
    other.join()
    assert torch.equal(made[0], expected) and torch.equal(x.softmax(-1), expected)
    threads.let_go()
    threads.let_go()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_who_lets_go_has_no_helper() -> None:
    with set_threads(2):
        torch.randn(512, 4096).softmax(-1)
        before = len(os.listdir("/proc/self/task"))
        threads.let_go()
        until = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) == before and time.monotonic() < until:
            time.sleep(0.01)  # the system counts a thread for a moment after its end
        assert len(os.listdir("/proc/self/task")) < before


@pytest.mark.parametrize(("quota", "most"), [(None, 4), (8.0, 4), (2.0, 2), (1.5, 1), (0.5, 1)])
def test_no_more_threads_than_the_control_group_s_quota(
    four: list[int], quota: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads.control_group, "cores", lambda: quota)
    assert Threads().full == most == torch.get_num_threads()


def test_cores_outside_the_quota_leave_its_threads(
    four: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four cores' time on a machine of 64 of which others keep 20 busy."""
    four.append(64)
    looks = [Look(0.0, 0.0, 0.0)]
    monkeypatch.setattr(threads.control_group, "cores", lambda: 4.0)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(threads, "look", lambda: looks[-1])
    monkeypatch.setattr(threads.time, "perf_counter", lambda: looks[-1].wall)
    mine = Threads()
    assert mine.full == 4
    looks.append(Look(1.0, 4.0, 24.0))
    mine.adapt()
    assert four[-1] == 4
    four.append(32)  # asked for by somebody else
    looks.append(Look(2.0, 8.0, 48.0))
    mine.adapt()
    assert mine.full == four[-1] == 4
    looks.append(Look(3.0, 10.0, 112.0))  # two cores are left
    mine.adapt()
    assert four[-1] == 2
