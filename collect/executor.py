"""Where groups of queries are collected: here, or at what stands behind another executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from decoders.costs.measured import Costs

from .batch import Collected, Prompt, SweepOptions
from .engine import BatchDecoder, SweepEngine
from .records import ArmInfo
from .sampled import collect_temperatures


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
    ) -> Iterator[Collected]:
        """The groups' rows, in the order of the groups; what fails on a query is its error row."""
        ...


class Here:
    """In this process, one group after the other."""

    def __init__(self, engine: SweepEngine, batch: BatchDecoder) -> None:
        self._engine, self._batch = engine, batch

    def costs(self) -> Costs:
        return self._batch.cost_table

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
    ) -> Iterator[Collected]:
        for group in groups:
            yield collect_temperatures(self._engine, self._batch, group, arms, options)
