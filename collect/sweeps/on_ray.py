"""Collecting on a Ray cluster: an actor for each device, groups of queries as its tasks.

The rows are those of a collection in one process, in the same shards: groups are made by the same
rule, their seeds are their own, and they are stored in their order whichever worker was faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from decoders.common.errors import DraftpickError
from decoders.common.openmp import spin_briefly
from decoders.common.wording import first_line
from decoders.costs.measured import Costs

from ..records import ArmInfo
from .batch import Collected, OnRows, Prompt, SweepOptions, no_progress
from .executor import Executor, Here
from .protocols import SweepEngine
from .ray_cluster import connect, ray_module, shares

if TYPE_CHECKING:
    from ..replay.batch import Batch

MOST_DEATHS = 3  # of workers over one group
AHEAD = 2  # groups started and not yet stored, for each worker

Make = Callable[[], tuple[SweepEngine, "Batch | Executor"]]


class _Worker:
    """One device; the engine is loaded with the first task, so that its mistakes are a task's."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._here: Executor | None = None

    def costs(self) -> Costs:
        return self._loaded().costs()

    def collect(
        self, group: Sequence[Prompt], arms: Sequence[ArmInfo], options: SweepOptions
    ) -> Collected:
        (done,) = self._loaded().collect([group], arms, options)
        return done

    def _loaded(self) -> Executor:
        if self._here is None:
            spin_briefly()
            engine, batch = self._make()
            self._here = batch if isinstance(batch, Executor) else Here(engine, batch)
        return self._here


@dataclass
class _Task:
    """A group on its way. deaths: workers that it has lost."""

    index: int
    group: Sequence[Prompt]
    deaths: int = 0


class OnRay:
    """An executor over the workers of a Ray cluster; a context manager, which connects.

    make: loads an engine; called in every worker.
    address: of a cluster that runs, as `ray.init` takes it; None starts one on this machine, which
        ends with the block.
    workers: None for one a GPU of the cluster, or one a machine where there are none.

    A worker that dies is replaced and its group done again. Raises DraftpickError where Ray is not
    installed or not reached, and where a group loses MOST_DEATHS workers.
    """

    def __init__(self, make: Make, address: str | None = None, workers: int | None = None) -> None:
        self._make, self._address, self._asked = make, address, workers
        self._ours = False
        self._actor: Any = None
        self._idle: list[Any] = []
        self._started: list[Any] = []

    def __enter__(self) -> Self:
        ray = _ray()
        self._ours = connect(ray, self._address)
        self._workers, cores, gpus = shares(ray, self._asked)
        self._actor = ray.remote(_Worker).options(num_cpus=cores, num_gpus=gpus)
        self._idle = [self._start() for _ in range(self._workers)]
        return self

    def __exit__(self, *failure: object) -> None:
        ray = _ray()
        for worker in self._started:  # one at work too, where the sweep ends early
            with suppress(Exception):
                ray.kill(worker)
        if self._ours:
            ray.shutdown()

    def costs(self) -> Costs:
        """Measured by one of the workers."""
        ray = _ray()
        try:
            with _explained():
                found: Costs = ray.get(self._idle[0].costs.remote())
        except ray.exceptions.RayActorError as error:
            raise DraftpickError(f"a worker could not start: {first_line(error)}") from error
        return found

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        on_rows: OnRows = no_progress,
    ) -> Iterator[Collected]:
        """Workers hand over whole groups, so that nothing is known before."""
        ray = _ray()
        todo = (_Task(index, group) for index, group in enumerate(groups))
        again: deque[_Task] = deque()
        running: dict[Any, tuple[_Task, Any]] = {}
        ready: dict[int, Collected] = {}
        following = 0  # the next to be handed out
        while True:
            while self._idle:
                begun = len(running) + len(ready)
                if again:
                    task = again.popleft()
                elif begun >= AHEAD * self._workers or (found := next(todo, None)) is None:
                    break
                else:
                    task = found
                worker = self._idle.pop()
                running[worker.collect.remote(task.group, arms, options)] = (task, worker)
            if not running:
                return
            (finished, *_), _ = ray.wait(list(running))
            task, worker = running.pop(finished)
            try:
                with _explained():
                    ready[task.index] = ray.get(finished)
                self._idle.append(worker)
            except ray.exceptions.RayActorError as error:
                task.deaths += 1
                if task.deaths == MOST_DEATHS:
                    first = task.group[0].query.id
                    raise DraftpickError(
                        f"{MOST_DEATHS} workers died over the same {len(task.group)} queries "
                        f"(the first is {first!r}); lower --batch-size, or see Ray's logs: "
                        f"{first_line(error)}"
                    ) from error
                self._idle.append(self._start())
                again.append(task)
            while following in ready:
                yield ready.pop(following)
                following += 1

    def _start(self) -> Any:
        worker = self._actor.remote(self._make)
        self._started.append(worker)
        return worker


@contextmanager
def _explained() -> Iterator[None]:
    """Raises what a worker's task raised, in its own words."""
    errors = _ray().exceptions
    try:
        yield
    except errors.RayTaskError as error:
        raise error.cause from error


def _ray() -> Any:
    return ray_module("collecting")
