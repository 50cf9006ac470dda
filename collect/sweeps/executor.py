"""Executors, which collect groups of queries: in this process or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from decoders.costs.measured import Costs
from decoders.records import Request

from ..records import ArmInfo
from .batch import Collected, OnRows, Prompt, Setup, SweepOptions, no_progress
from .conditions import collect_loads
from .protocols import SweepEngine

if TYPE_CHECKING:
    from ..replay.batch import Batch


@runtime_checkable
class Executor(Protocol):
    """Runs every arm on every query of a group, and the groups in any order, or side by side."""

    def costs(self) -> Costs:
        """What decoding costs where the groups are collected."""
        ...

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        on_rows: OnRows = no_progress,
    ) -> Iterator[Collected]:
        """The groups' rows, in the order of the groups; what fails on a query is its error row.

        on_rows: called with rows of the group that comes next, by executors which know them before
            the whole group is done.
        """
        ...


@runtime_checkable
class ByCosts(Protocol):
    """An executor whose arms draft by what decoding costs."""

    def go_on_with(self, costs: Costs) -> None:
        """Let them draft by these, which a folder's first run measured."""


@runtime_checkable
class OwnExecutor(Executor, Protocol):
    """Collects in this process what arms of one kind answer elsewhere (see EXECUTORS)."""

    def adapted(self, options: SweepOptions) -> SweepOptions:
        """The options as it collects."""
        ...


class Here:
    """An executor in this process, one group after the other; where arms are timed, they are warmed
    up once."""

    def __init__(self, engine: SweepEngine, batch: Batch) -> None:
        self._engine, self.batch = engine, batch
        self._warm = False

    def costs(self) -> Costs:
        return self.batch.cost_table

    def go_on_with(self, costs: Costs) -> None:
        self.batch.go_on_with(costs)

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        on_rows: OnRows = no_progress,
    ) -> Iterator[Collected]:
        setup = Setup(self._engine, self.batch, arms, options, on_rows)
        for group in groups:
            if options.measure and not self._warm:
                self._warm_up(group[0], arms)
            yield collect_loads(setup, group)

    def _warm_up(self, prompt: Prompt, arms: Sequence[ArmInfo]) -> None:
        """One decode an arm, so that no query pays for compilation and first allocations."""
        for arm in arms:
            with suppress(Exception):  # what fails here fails on its query too, where a row says so
                self._engine.decode(arm.name, prompt.ids, Request(max_new_tokens=8))
        self._warm = True
