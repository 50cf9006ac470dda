"""The stored outcomes of a collection, by query, temperature, load and arm."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..records import Outcome
from .dataset import OUTCOMES_SCHEMA, read_table

# The long columns (tokens, text) are the bulk of the file, and no reward reads them.
_NUMBERS = tuple(
    name
    for name in OUTCOMES_SCHEMA.names
    if name not in ("output_ids", "text", "target_ids", "agree")
)


class Place(NamedTuple):
    """Where every arm has a row. running: as of Outcome."""

    query: str
    temperature: float
    running: int = 0

    @property
    def name(self) -> str:
        """ID, ID@TEMPERATURE, or ID@TEMPERATUREx(answers at once)."""
        if self.running:
            return f"{self.query}@{self.temperature:g}x{self.running + 1}"
        return f"{self.query}@{self.temperature:g}" if self.temperature else self.query


def read_outcomes(
    folder: str | Path, temperature: float = 0.0, running: int = 0
) -> dict[str, dict[str, Outcome]]:
    """The numbers of every stored row of one temperature and load: query id -> arm -> outcome, in
    stored order."""
    stored = outcomes_by_place(folder)
    asked = (temperature, running)
    return {at.query: arms for at, arms in stored.items() if at[1:] == asked}


def outcomes_by_place(folder: str | Path) -> dict[Place, dict[str, Outcome]]:
    """The same of all temperatures and loads."""
    found: dict[Place, dict[str, Outcome]] = {}
    for record in read_table(folder, "outcomes", _NUMBERS).to_pylist():
        outcome = Outcome(**record)
        place = Place(outcome.query_id, outcome.temperature, outcome.running)
        found.setdefault(place, {})[outcome.arm] = outcome
    return found


def looping_places(folder: str | Path) -> set[Place]:
    """Where the target's answer loops, by places without others beside."""
    columns = ("query_id", "temperature", "loops", "target_ids")
    found, known = set[Place](), set[Place]()
    for row in read_table(folder, "outcomes", columns).to_pylist():
        place = Place(row["query_id"], row["temperature"])
        if place in known or not row["target_ids"]:
            continue
        known.add(place)
        if row["loops"]:
            found.add(place)
    return found
