"""A stored collection, opened once: manifest, queries, outcomes and embeddings."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError

from ..embedders import OWN, Embedder, is_own, query_text, same_space
from ..records import Outcome, OutcomeKey, QueryRow
from .embeddings import Embeddings, embedded
from .manifest import Manifest, read_manifest
from .tables import read_table

# Without the long columns of an OutcomeRow (tokens, text): they are the bulk of the file.
_NUMBERS = tuple(field.name for field in fields(Outcome))


class Collection:
    """What a folder holds. Every file is read at most once, when it is first asked for, so that
    rows which are added later need another `open`.

    folder: where it lies.
    manifest: what was collected, with what, where.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._spaces: dict[str, Embeddings] = {}

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Raises DraftpickError where there is no collection, and Damaged as `read_manifest` and,
        when their files are first read, the properties do."""
        return cls(Path(folder), read_manifest(folder))

    @cached_property
    def queries(self) -> dict[str, QueryRow]:
        """Queries by id, in stored order."""
        found = {}
        for record in read_table(self.folder, "queries").to_pylist():
            vector = record["embedding"]
            found[record["query_id"]] = QueryRow(
                **record
                | {
                    "turns": tuple(record["turns"]),
                    "prompt_ids": tuple(record["prompt_ids"]),
                    "embedding": None if vector is None else np.array(vector, dtype=np.float32),
                }
            )
        return found

    @cached_property
    def outcomes(self) -> dict[OutcomeKey, dict[str, Outcome]]:
        """The numbers of every row: key -> arm -> outcome, in stored order."""
        found: dict[OutcomeKey, dict[str, Outcome]] = {}
        for record in read_table(self.folder, "outcomes", _NUMBERS).to_pylist():
            widths = record["widths"]
            listed = {"widths": None if widths is None else tuple(widths)}
            outcome = Outcome(**record | listed)
            key = OutcomeKey(outcome.query_id, outcome.temperature, outcome.running, outcome.draw)
            found.setdefault(key, {})[outcome.arm] = outcome
        return found

    def outcomes_at(
        self, temperature: float = 0.0, running: int = 0, draw: int = 0
    ) -> dict[str, dict[str, Outcome]]:
        """Outcomes of one temperature, load and draw: query id -> arm -> outcome."""
        asked = (temperature, running, draw)
        return {key.query: arms for key, arms in self.outcomes.items() if key[1:] == asked}

    @cached_property
    def repetitive(self) -> set[OutcomeKey]:
        """Keys of queries whose answer by the target repeats itself to the end; it is the same at
        every load, and the keys are those of load 0."""
        return {
            key._replace(running=0)
            for key, arms in self.outcomes.items()
            if any(row.repetitive for row in arms.values())
        }

    def embeddings(self, embedder: str | Embedder | None = None) -> Embeddings:
        """The vectors of every query in one space; what is missing is computed and kept.

        embedder: as in `load_embedder`, or one that is loaded; None for the one that the
            collection was made with.

        Raises DraftpickError for an unknown embedder, for another target's own, and where the disk
        refuses.
        """
        own = self.manifest.identity.embedder
        asked = self.manifest.reads if embedder is None else embedder
        name = asked if isinstance(asked, str) else asked.name
        if name == OWN or same_space(name, own):
            return Embeddings(own, self._own)
        if is_own(name):
            raise DraftpickError(
                f"{self.folder} was collected with {own}, and {name} is another target's own; "
                "collect with that target, or take `--embedder target`"
            )
        if name not in self._spaces:
            self._spaces[name] = embedded(self.folder, self._texts, asked)
        return self._spaces[name]

    @property
    def _own(self) -> dict[str, NDArray[np.float32]]:
        """The target's vectors; a query that it failed on, or gave no numbers for, has none."""
        return {
            name: query.embedding
            for name, query in self.queries.items()
            if query.embedding is not None and np.isfinite(query.embedding).all()
        }

    @property
    def _texts(self) -> dict[str, str]:
        """What is embedded of every query: its first turn, as of a chat that consists of it."""
        return {
            name: query_text([{"role": "user", "content": query.turns[0]}])
            for name, query in self.queries.items()
        }
