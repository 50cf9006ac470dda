"""Sums over servers that start and stop, with counts that never fall.

Prometheus reads a falling counter as a restart and counts its whole value again. So the last counts
of a server that has ended stay in the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..metrics import ArmCounts, by_arm
from .aggregate import aggregate

OF_NOW = ("requests_running", "requests_waiting", "tokens_per_s")
OF_ALL = ("target", "policy", "limits")  # the same everywhere


@dataclass(frozen=True)
class Snapshot:
    """What a server returned at /stats and /metrics."""

    stats: dict[str, Any]
    metrics: str


class Counters:
    """Sums over servers. Counts are the last of every server, those that have ended included.
    Gauges are of the servers that answered last time."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Snapshot] = {}  # of live servers
        self._now: dict[Hashable, Snapshot] = {}  # those of them that answered last time
        self._gone_arms: dict[str, Any] = {}
        self._gone_metrics = ""
        self._same: dict[str, Any] = {}

    def update(self, snapshots: Mapping[Any, Snapshot], live: Collection[Any]) -> None:
        """snapshots: by server, of those that answered just now. live: servers that have not ended;
        one that has ended never comes back."""
        self._last |= snapshots
        self._now = {server: each for server, each in snapshots.items() if server in live}
        for each in snapshots.values():
            self._same = {name: each.stats[name] for name in OF_ALL}
        for server in [server for server in self._last if server not in live]:
            last = self._last.pop(server)
            self._gone_arms = aggregate_arms([self._gone_arms, last.stats["arms"]])
            self._gone_metrics = aggregate([], [self._gone_metrics, last.metrics])[0].decode()

    @property
    def empty(self) -> bool:
        """No server has answered yet."""
        return not self._same

    def stats(self) -> dict[str, Any]:
        """One server's /stats without `uptime_s`; fewer fields while empty."""
        last = [each.stats["arms"] for each in self._last.values()]
        now = {name: sum(each.stats[name] for each in self._now.values()) for name in OF_NOW}
        return self._same | now | {"arms": aggregate_arms([*last, self._gone_arms])}

    def metrics(self) -> tuple[bytes, str]:
        """(exposition, content type)."""
        silent = [each.metrics for server, each in self._last.items() if server not in self._now]
        now = [each.metrics for each in self._now.values()]
        return aggregate(now, [*silent, self._gone_metrics])


def aggregate_arms(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `arms` of several /stats as one: counts are added, rates follow from them."""
    sums: dict[str, ArmCounts] = {}
    for arms in several:
        for name, stats in arms.items():
            sums.setdefault(name, ArmCounts()).add(ArmCounts.from_json(stats))
    return by_arm(sums)
