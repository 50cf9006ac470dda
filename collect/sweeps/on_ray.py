"""Collecting on a Ray cluster: an actor for each device, groups of queries as its tasks.

The rows are those of a collection in one process, in the same shards: groups are made by the same
rule, their seeds are their own, and they are stored in their order whichever worker was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from decoders.common.errors import DraftpickError
from decoders.common.openmp import spin_briefly
from decoders.common.wording import first_line
from decoders.costs.measured import Costs

from ..records import ArmInfo
from .batch import Collected, OnRows, Prompt, SweepOptions, no_progress
from .executor import ByCosts, Executor, Here
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
        self,
        group: Sequence[Prompt],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        costs: Costs | None,
    ) -> Collected:
        executor = self._loaded()
        if costs is not None and isinstance(executor, ByCosts):
            executor.go_on_with(costs)
        (done,) = executor.collect([group], arms, options)
        return done

    def _loaded(self) -> Executor:
        if self._here is None:
            spin_briefly()
            engine, batch = self._make()
            self._here = batch if isinstance(batch, Executor) else Here(engine, batch)
        return self._here


class OnRay:
    """An executor over the workers of a Ray cluster; a context manager, which connects.

    make: loads an engine; called in every worker.
    address: of a cluster that runs, as `ray.init` takes it; None starts one on this machine, which
        ends with the block.
    workers: None for one a GPU of the cluster, or one a machine where there are none.

    A worker that dies is started anew, and its group done again, by Ray itself. Raises
    DraftpickError where Ray is not installed or not reached, and where a group loses MOST_DEATHS
    workers.
    """

    def __init__(self, make: Make, address: str | None = None, workers: int | None = None) -> None:
        self._make, self._address, self._asked = make, address, workers
        self._ours = False
        self._workers: list[Any] = []
        self._costs: Costs | None = None  # that all workers' arms draft by

    def __enter__(self) -> Self:
        ray = _ray()
        self._ours = connect(ray, self._address)
        workers, cores, gpus = shares(ray, self._asked)
        again = {"max_restarts": -1, "max_task_retries": MOST_DEATHS - 1}
        actor = ray.remote(_Worker).options(num_cpus=cores, num_gpus=gpus, **again)
        self._workers = [actor.remote(self._make) for _ in range(workers)]
        return self

    def __exit__(self, *failure: object) -> None:
        ray = _ray()
        for worker in self._workers:  # one at work too, where the sweep ends early
            with suppress(Exception):
                ray.kill(worker)
        if self._ours:
            ray.shutdown()

    def costs(self) -> Costs:
        """Measured by one of the workers."""
        ray = _ray()
        try:
            with _explained():
                found: Costs = ray.get(self._workers[0].costs.remote())
        except ray.exceptions.RayActorError as error:
            raise DraftpickError(f"a worker could not start: {first_line(error)}") from error
        return found

    def go_on_with(self, costs: Costs) -> None:
        self._costs = costs  # told with every group, as a worker may be started anew

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        on_rows: OnRows = no_progress,
    ) -> Iterator[Collected]:
        """Workers hand over whole groups, so that nothing is known before."""
        ray = _ray()
        todo, idle = enumerate(groups), [*self._workers]
        running: dict[Any, tuple[int, Sequence[Prompt], Any]] = {}
        ready: dict[int, Collected] = {}
        following = 0  # the next to be handed out
        while True:
            while idle and len(running) + len(ready) < AHEAD * len(self._workers):
                found = next(todo, None)
                if found is None:
                    break
                worker = idle.pop()
                task = worker.collect.remote(found[1], arms, options, self._costs)
                running[task] = (*found, worker)
            if not running:
                return
            (finished, *_), _ = ray.wait(list(running))
            index, group, worker = running.pop(finished)
            try:
                with _explained():
                    ready[index] = ray.get(finished)
            except ray.exceptions.RayActorError as error:
                raise DraftpickError(
                    f"{MOST_DEATHS} workers died over the same {len(group)} queries "
                    f"(the first is {group[0].query.id!r}); lower --batch-size, or see Ray's logs: "
                    f"{first_line(error)}"
                ) from error
            idle.append(worker)
            while following in ready:
                yield ready.pop(following)
                following += 1


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
