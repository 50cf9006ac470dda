"""What servers that come and go told, as of one server whose counts never go back.

Prometheus takes a counter that falls for one that began anew, and all that it still shows for new:
so what a server counted goes on being counted after its end.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..metrics import ArmCounts, by_arm
from .aggregate import summed

OF_NOW = ("requests_running", "requests_waiting", "tokens_per_s")
OF_ALL = ("target", "policy", "limits")  # the same everywhere


@dataclass(frozen=True)
class Told:
    """What a server gave at /stats and /metrics."""

    stats: dict[str, Any]
    metrics: str


class Totals:
    """Sums over servers. Counts are what each told last, those that have gone included; what holds
    at the moment is of those that answered the last time."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Told] = {}  # of those that live
        self._now: dict[Hashable, Told] = {}  # of those among them that answered the last time
        self._gone_arms: dict[str, Any] = {}
        self._gone_metrics = ""
        self._same: dict[str, Any] = {}

    def update(self, told: Mapping[Any, Told], live: Collection[Any]) -> None:
        """told: by server, of those that were asked just now and answered. live: the servers that
        have not gone; those that have never come back."""
        self._last |= told
        self._now = {server: each for server, each in told.items() if server in live}
        for each in told.values():
            self._same = {name: each.stats[name] for name in OF_ALL}
        for server in [server for server in self._last if server not in live]:
            last = self._last.pop(server)
            self._gone_arms = summed_arms([self._gone_arms, last.stats["arms"]])
            self._gone_metrics = summed([], [self._gone_metrics, last.metrics])[0].decode()

    @property
    def empty(self) -> bool:
        """No server has told anything yet."""
        return not self._same

    def stats(self) -> dict[str, Any]:
        """What one server's /stats gives but for `uptime_s`; where it is empty, less."""
        last = [told.stats["arms"] for told in self._last.values()]
        now = {name: sum(told.stats[name] for told in self._now.values()) for name in OF_NOW}
        return self._same | now | {"arms": summed_arms([*last, self._gone_arms])}

    def metrics(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        silent = [told.metrics for server, told in self._last.items() if server not in self._now]
        now = [told.metrics for told in self._now.values()]
        return summed(now, [*silent, self._gone_metrics])


def summed_arms(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `arms` of /stats of several servers as those of one: counts added up, rates from them."""
    sums: dict[str, ArmCounts] = {}
    for arms in several:
        for name, told in arms.items():
            sums.setdefault(name, ArmCounts()).add(ArmCounts.from_json(told))
    return by_arm(sums)
