"""The metrics of several servers, added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

COUNTED = ("counter", "histogram", "summary")  # types that only grow


class _Aggregate:
    """A collector of metric families; samples with the same name and labels are added."""

    def __init__(self, texts: Iterable[tuple[str, bool]]) -> None:
        """texts: expositions, each with whether its gauges count too."""
        from prometheus_client.parser import text_string_to_metric_families

        self._families: dict[str, Any] = {}
        sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text, gauges in texts:
            for family in text_string_to_metric_families(text):
                if not gauges and family.type not in COUNTED:
                    continue
                self._families.setdefault(family.name, family)
                mine = sums.setdefault(family.name, {})
                for sample in family.samples:
                    if sample.name.endswith("_created"):
                        continue  # moments, which have no sum
                    key = (sample.name, tuple(sorted(sample.labels.items())))
                    mine[key] = mine.get(key, 0.0) + sample.value
        for name, family in self._families.items():
            family.samples = []
            for (own, labels), value in sums[name].items():
                family.add_sample(own, dict(labels), value)

    def collect(self) -> Iterable[Any]:
        return [family for family in self._families.values() if family.samples]


def aggregate(texts: Sequence[str], counters_of: Sequence[str] = ()) -> tuple[bytes, str]:
    """(exposition, content type) of the sum.

    texts: each server's /metrics.
    counters_of: further ones, of which only counters and histograms count.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    whole = [(text, True) for text in texts]
    collector: Any = _Aggregate([*whole, *((text, False) for text in counters_of)])
    return generate_latest(collector), CONTENT_TYPE_LATEST
