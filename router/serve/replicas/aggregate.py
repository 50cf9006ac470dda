"""The metrics of several servers, added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..metrics import Reading

COUNTED = ("counter", "histogram", "summary")  # types that only grow


def aggregate(texts: Sequence[str], counters_of: Sequence[str] = ()) -> tuple[bytes, str]:
    """(exposition, content type) of the sum.

    texts: each server's /metrics.
    counters_of: further ones, of which only counters and histograms count.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    whole = [(text, True) for text in texts]
    families = _added([*whole, *((text, False) for text in counters_of)])
    summed: Any = Reading(lambda: families)
    return generate_latest(summed), CONTENT_TYPE_LATEST


def _added(texts: Iterable[tuple[str, bool]]) -> list[Any]:
    """Metric families, samples with the same name and labels added.

    texts: expositions, each with whether its gauges count too.
    """
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Any] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text, gauges in texts:
        for family in text_string_to_metric_families(text):
            if not gauges and family.type not in COUNTED:
                continue
            families.setdefault(family.name, family)
            mine = sums.setdefault(family.name, {})
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue  # moments, which have no sum
                key = (sample.name, tuple(sorted(sample.labels.items())))
                mine[key] = mine.get(key, 0.0) + sample.value
    for name, family in families.items():
        family.samples = []
        for (own, labels), value in sums[name].items():
            family.add_sample(own, dict(labels), value)
    return [family for family in families.values() if family.samples]
