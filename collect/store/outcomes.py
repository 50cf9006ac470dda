"""The stored outcomes of a collection, by query, temperature, load and arm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..records import Outcome
from ..repetition import loops
from ..rouge import WORDS, rouge_l
from .dataset import OUTCOMES_SCHEMA, read_manifest, read_table

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
    stored order.

    rouge_l is by today's words: where it was collected by others, it is computed anew from the
    stored texts.
    """
    stored = outcomes_by_place(folder)
    asked = (temperature, running)
    return {at.query: arms for at, arms in stored.items() if at[1:] == asked}


def outcomes_by_place(folder: str | Path) -> dict[Place, dict[str, Outcome]]:
    """The same of all temperatures and loads."""
    found: dict[Place, dict[str, Outcome]] = {}
    anew = _likeness_anew(folder)
    for record in read_table(folder, "outcomes", _NUMBERS).to_pylist():
        outcome = Outcome(**record)
        key = (outcome.query_id, outcome.arm)
        if key in anew and outcome.temperature == 0:
            outcome = replace(outcome, rouge_l=anew[key])
        place = Place(outcome.query_id, outcome.temperature, outcome.running)
        found.setdefault(place, {})[outcome.arm] = outcome
    return found


def _likeness_anew(folder: str | Path) -> dict[tuple[str, str], float]:
    """(query id, arm) -> rouge_l, of the rows whose stored one is by other words than today's.

    Where both texts are ASCII the words are the same.
    """
    if read_manifest(folder).identity.rouge_words == WORDS:
        return {}
    queries = read_table(folder, "queries", ("query_id", "target_text")).to_pylist()
    targets = {row["query_id"]: row["target_text"] for row in queries}
    columns = ("query_id", "arm", "running", "text", "rouge_l")
    return {
        (row["query_id"], row["arm"]): rouge_l(targets[row["query_id"]], row["text"])
        for row in read_table(folder, "outcomes", columns).to_pylist()
        if row["rouge_l"] is not None
        and not row["running"]  # whose texts are not kept again
        and not (row["text"].isascii() and targets[row["query_id"]].isascii())
    }


def looping_places(folder: str | Path) -> set[Place]:
    """Where the target's answer loops, by places without others beside. Collections before 0.2 did
    not say: it is looked up there. An answer shorter than asked for ended with an end-of-sequence
    token."""
    columns = ("query_id", "temperature", "loops", "target_ids")
    most = read_manifest(folder).identity.max_new_tokens
    found, known = set[Place](), set[Place]()
    for row in read_table(folder, "outcomes", columns).to_pylist():
        place, ids = Place(row["query_id"], row["temperature"]), row["target_ids"]
        if place in known or not ids:
            continue
        known.add(place)
        looped = row["loops"]
        if looped is None:
            looped = loops(ids if len(ids) == most else ids[:-1])
        if looped:
            found.add(place)
    return found
