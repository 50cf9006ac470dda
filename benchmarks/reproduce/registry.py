"""Every reproduction by its name."""

from __future__ import annotations

from collections.abc import Callable

from decoders.common.errors import NoSuchName

from . import ablations, llama, rules, sizes, specialists
from .records import Reproduction

REPRODUCTIONS: dict[str, Callable[[], Reproduction]] = {
    "table-1": specialists.table_1,
    "table-2": sizes.table_2,
    "table-3": specialists.table_3,
    "table-4": specialists.table_4,
    "table-5": llama.table_5,
    "table-6": llama.table_6,
    "figure-2": sizes.figure_2,
    "figure-3": ablations.figure_3,
    "tables-11-12": ablations.tables_11_12,
    "tables-13-14": ablations.tables_13_14,
    "speccascade": rules.speccascade,
    "bild": rules.bild,
}


def reproduction(name: str) -> Reproduction:
    """Raises NoSuchName with the names that there are."""
    if name not in REPRODUCTIONS:
        raise NoSuchName("reproduction", name, tuple(REPRODUCTIONS))
    return REPRODUCTIONS[name]()
